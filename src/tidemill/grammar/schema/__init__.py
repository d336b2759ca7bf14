"""JSON schemas, keyword by keyword: each is enforced, ignored as an annotation, or rejected.

llguidance enforces a subset of JSON Schema, ignores unknown keywords, and computes numbers as
doubles. A schema that it would not enforce completely is rewritten so that it does, or rejected
with the keyword's path; no constraint is relaxed silently. Covers drafts 4 to 2020-12
(https://json-schema.org/draft/2020-12).

This package is a pure function of the schema's text: no clock, no state, no I/O, no native code
except the standard library's JSON parser. The limits in `keywords` bound its time.
"""

from __future__ import annotations

import json
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.grammar.schema.audit import Audit
from tidemill.grammar.schema.finite import prune_infinite
from tidemill.grammar.schema.keywords import MAX_DEPTH, MAX_ENUM, MAX_NODES, MAX_OPTIONAL
from tidemill.grammar.schema.lowering import lower
from tidemill.grammar.schema.paths import path_of, patterns, rejected
from tidemill.grammar.schema.references import References

__all__ = ["MAX_DEPTH", "MAX_ENUM", "MAX_NODES", "MAX_OPTIONAL", "path_of", "patterns", "prepared"]

# White space between tokens: enough for one-line and indented documents, but no long runs.
WHITESPACE = r" {0,2}|\r?\n[ \t]{0,62}"

# Without this restriction, an additional property could repeat a named one by means of Unicode
# escapes ("\u0061" for "a").
_NAMED_ESCAPES = 'nrbtf\\"'


def prepared(source: str, param: str) -> str:
    """Validate a schema and rewrite it for the compiler, such that all of it is enforced.

    Args:
        source: JSON text.
        param: the request's field that holds it.

    Raises:
        TidemillError: kind BAD_REQUEST whose `param` is the path of a keyword that cannot be
            enforced.
    """
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise bad_request(param, f"{param} is not valid JSON: {error}") from None
    audit = Audit(param)
    kept = audit.walk(schema, (), 0)
    if kept is True:
        kept = {}
    if not isinstance(kept, dict):
        at = () if schema is False else ("not",)  # only `not` reduces a schema to false
        raise rejected(param, at, "the schema allows no value, so no answer is valid")
    references = References(kept, param)
    if audit.references:
        references.check()
    lowered = lower(kept, references, param)
    if audit.references and lowered.changed:
        references = References(kept, param)  # targets may have been rewritten
        references.check()
    if references.recursive or audit.never or lowered.never or lowered.changed:
        prune_infinite(kept, references, param)
    options: dict[str, Any] = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
    if lowered.named:
        options["json_allowed_escapes"] = _NAMED_ESCAPES
    kept["x-guidance"] = options
    return json.dumps(kept, ensure_ascii=False)
