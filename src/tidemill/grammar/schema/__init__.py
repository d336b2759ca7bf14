"""JSON schemas, keyword by keyword: enforced, without effect on what is valid, or rejected.

llguidance enforces a part of JSON Schema, passes over keywords it does not know, and computes
numbers as doubles. A schema that it would not honour in full is written so that it does, or
rejected here with the keyword and its place named; nothing is relaxed quietly. Covers drafts 4 to
2020-12 (https://json-schema.org/draft/2020-12).

Everything in this package is a pure function of the schema's text: no clock, no state, no I/O, no
native code but the standard library's JSON reader. Its time is bounded by `keywords`' limits.
"""

from __future__ import annotations

import json
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.grammar.schema.audit import Audit
from tidemill.grammar.schema.finite import without_endless
from tidemill.grammar.schema.keywords import MAX_DEPTH, MAX_ENUM, MAX_NODES, MAX_OPTIONAL
from tidemill.grammar.schema.lowering import lower
from tidemill.grammar.schema.paths import path_of, patterns, rejected
from tidemill.grammar.schema.references import References

__all__ = ["MAX_DEPTH", "MAX_ENUM", "MAX_NODES", "MAX_OPTIONAL", "path_of", "patterns", "prepared"]

# Between the parts of a document: what one-line and indented documents need, no runs of it.
WHITESPACE = r" {0,2}|\r?\n[ \t]{0,62}"

# A name that may be any could be another's in the disguise of escapes ("\u0061" for "a").
_NAMED_ESCAPES = 'nrbtf\\"'


def prepared(source: str, param: str) -> str:
    """A schema as it is given to the compiler, once all of it is known to be enforceable.

    Args:
        source: JSON text.
        param: the request's field it came from.

    Raises:
        TidemillError: kind BAD_REQUEST whose `param` is the path of the keyword that is not.
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
        at = () if schema is False else ("not",)  # what has become false said so there
        raise rejected(param, at, "the schema allows nothing; no answer obeys it")
    references = References(kept, param)
    if audit.references:
        references.check()
    lowered = lower(kept, references, param)
    if audit.references and lowered.changed:
        references = References(kept, param)  # what is rewritten cannot be pointed to
        references.check()
    if references.recursive or audit.never or lowered.never or lowered.changed:
        without_endless(kept, references, param)
    options: dict[str, Any] = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
    if lowered.named:
        options["json_allowed_escapes"] = _NAMED_ESCAPES
    kept["x-guidance"] = options
    return json.dumps(kept, ensure_ascii=False)
