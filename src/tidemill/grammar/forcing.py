"""Grammars that may leave one way on for very long: `c{100000}`.

llguidance looks for all that must come next in one go, whenever a mask is wanted; in a run without
an end that takes a second, in which every stream of the engine waits. Such grammars are compiled to
go token by token, which comes to the same tokens. Whether a grammar is one is estimated, and rather
too often than too seldom.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from tidemill.contract.program import Grammar
from tidemill.grammar import schema

MAX_FORCED = 4096
"""Bytes in a row that may be looked for at once; they take up to 40 ms."""

MAX_SCHEMAS = 600

_HUGE = 10**9
_COUNT = re.compile(r"\{\s*(\d+)\s*(?:,\s*\d*\s*)?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*+\]?", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]*\}?|.)", re.DOTALL)
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*+|/(?:\\.|[^/\\\n])*+')
_SCHEMA = re.compile(r"%json\s*")
_OPTION = '\n%llguidance {"no_forcing": true}\n'  # the last one counts


def may_force_much(grammar: Grammar, source: str) -> bool:
    """The language may have a run of more than `MAX_FORCED` bytes without a choice.

    Args:
        grammar: what was asked for.
        source: the same as llguidance reads it.
    """
    if grammar.kind == "regex":
        return _regex_run(grammar.source) > MAX_FORCED
    if grammar.kind in ("json_schema", "json_object"):
        return _schema_forces_much(grammar.source)
    if grammar.kind == "choice":
        return any(len(text) > MAX_FORCED for text in json.loads(grammar.source))
    rest, schemas = embedded_schemas(source)
    counts = 1
    for found in _COUNT.finditer(rest):
        counts = min(_HUGE, counts * max(1, _number(found[1])))
    longest = max((len(found[0]) for found in _LITERAL.finditer(rest)), default=1)
    return counts * longest > MAX_FORCED or any(map(_schema_forces_much, schemas))


def without_forcing(source: str) -> str:
    """llguidance's text of a grammar that goes token by token."""
    if source.lstrip().startswith("{"):
        document = json.loads(source)
        (only,) = document["grammars"]
        lark = only.get("lark_grammar")
        if lark is None:
            lark = f"start: %json {json.dumps(only['json_schema'])}"
        return json.dumps({"grammars": [{"lark_grammar": lark + _OPTION}]})
    return source + _OPTION


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 10 else _HUGE


def _schema_forces_much(source: str) -> bool:
    document = json.loads(source or "{}")
    if any(len(text) > MAX_FORCED for text in _texts(document)):
        return True
    return any(_regex_run(pattern) > MAX_FORCED for _, pattern in schema.patterns(document))


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield key
            yield from _texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value)


def _regex_run(expression: str) -> int:
    """The most bytes in a row that an expression may force: of its repeated parts, and of its
    plain text, both overestimated."""
    sums, longest, piece, at = [0], 0, 0, 0
    while at < len(expression):
        char, end = expression[at], at + 1
        if char == "{" and (found := _COUNT.match(expression, at)):
            repeated = min(_HUGE, piece * max(1, _number(found[1])))
            sums[-1] += repeated - piece
            piece, end = repeated, found.end()
        elif char == ")":
            piece = max(1, sums.pop()) if len(sums) > 1 else max(1, sums[-1])
            sums[-1] += piece
        elif char == "(":
            sums.append(0)
        elif char == "|":
            longest = max(longest, sums[-1])
            piece = 0
        elif char not in "*+?^$":
            found = (_CLASS if char == "[" else _ESCAPE).match(expression, at)
            end = found.end() if found else end
            piece = 1
            sums[-1] += 1
        at = end
    return max(longest, *sums)


def embedded_schemas(lark: str) -> tuple[str, list[str]]:
    """A grammar without the JSON schemas in it, and these; `MAX_SCHEMAS` are looked for."""
    rest, schemas, at, decoder = [], [], 0, json.JSONDecoder()
    for found in islice(_SCHEMA.finditer(lark), MAX_SCHEMAS):
        if found.start() < at:
            continue  # within the last one
        try:
            _, end = decoder.raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            continue
        rest.append(lark[at : found.end()])
        schemas.append(lark[found.end() : end])
        at = end
    return "".join([*rest, lark[at:]]), schemas
