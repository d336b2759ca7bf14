"""Detects grammars that may force very long token runs: `c{100000}`.

llguidance computes all forced tokens at once whenever a mask is requested. For a very long run that
takes a second, which blocks every stream of the engine. Such grammars are compiled without forcing
and advance token by token, which yields the same tokens. The detection is an estimate that prefers
false positives.
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
"""Maximum forced bytes that are computed at once, which takes up to 40 ms."""

MAX_SCHEMAS = 600

_HUGE = 10**9
_COUNT = re.compile(r"\{\s*(\d+)\s*(?:,\s*\d*\s*)?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*+\]?", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]*\}?|.)", re.DOTALL)
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*+|/(?:\\.|[^/\\\n])*+')
_SCHEMA = re.compile(r"%json\s*")
_OPTION = '\n%llguidance {"no_forcing": true}\n'  # the last option line takes effect


def may_force_much(grammar: Grammar, source: str) -> bool:
    """The language may force more than `MAX_FORCED` bytes in a row.

    Args:
        grammar: the request's.
        source: the same in llguidance's syntax.
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
    """The source of the same grammar with forcing disabled."""
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
    """Upper bound of the bytes in a row that an expression may force, by its repetitions and its
    literal text."""
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
    """A grammar without its embedded JSON schemas, and the first `MAX_SCHEMAS` of those."""
    rest, schemas, at, decoder = [], [], 0, json.JSONDecoder()
    for found in islice(_SCHEMA.finditer(lark), MAX_SCHEMAS):
        if found.start() < at:
            continue  # within the previous schema
        try:
            _, end = decoder.raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            continue
        rest.append(lark[at : found.end()])
        schemas.append(lark[found.end() : end])
        at = end
    return "".join([*rest, lark[at:]]), schemas
