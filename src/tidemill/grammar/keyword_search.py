"""Finds the schema keyword that crashes the compiling process, by compiling parts of the schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidemill.contract.program import Grammar
from tidemill.grammar.forcing import embedded_schemas
from tidemill.grammar.schema import path_of

MAX_TRIES = 40

_SUBSCHEMAS = ("additionalProperties", "additionalItems", "items", "not")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SHARED = ("$defs", "definitions", "$schema")

Path = tuple[str | int, ...]


def fatal_location(grammar: Grammar, is_fatal: Callable[[Grammar], bool]) -> tuple[str, str]:
    """Locate the fatal keyword of a grammar.

    Returns:
        Its path relative to the grammar's field (``.properties.a.const``), and a description if the
        schema is embedded in a grammar and therefore has no path.

    Args:
        grammar: a fatal one.
        is_fatal: compiles a grammar; True if that ends the process.
    """

    def fatal_schema(source: str) -> bool:
        return is_fatal(Grammar("lark", f"start: %json {source}", grammar.param))

    if grammar.kind == "json_schema":
        return fatal_keyword(
            grammar.source, lambda source: is_fatal(Grammar("json_schema", source, grammar.param))
        ), ""
    if grammar.kind == "lark":
        _, schemas = embedded_schemas(grammar.source)
        for number, source in enumerate(schemas[:MAX_TRIES], 1):
            if fatal_schema(source):
                return "", f" (schema {number} in it, {fatal_keyword(source, fatal_schema)})"
    return "", ""


def fatal_keyword(source: str, is_fatal: Callable[[str], bool]) -> str:
    """The path of a schema's fatal keyword, relative to the schema (``.properties.a.const``). If no
    single keyword is fatal, the path of the smallest fatal part that was found.

    Args:
        source: a fatal schema, as JSON text.
        is_fatal: compiles a schema; called at most `MAX_TRIES` times.
    """
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError):
        return ""
    tries = 0
    shared = {k: schema[k] for k in _SHARED if k in schema} if isinstance(schema, dict) else {}

    def fatal(part: Any) -> bool:
        nonlocal tries
        tries += 1
        if tries > MAX_TRIES or not isinstance(part, dict):
            return False
        return is_fatal(json.dumps({**shared, **part}))

    path: Path = ()
    node = schema
    while True:
        found = _among(list(_children(node)), fatal)
        if found is None:
            break
        path, node = path + found[0], found[1]
    if isinstance(node, Mapping):
        for key in node:
            rest = {k: v for k, v in node.items() if k != key}
            if key not in ("type", *_MAPS) and tries < MAX_TRIES and not fatal(rest):
                return path_of("", (*path, key))
    return path_of("", path)


def _among(parts: list[tuple[Path, Any]], fatal: Callable[[Any], bool]) -> tuple[Path, Any] | None:
    """A part that is fatal on its own, by bisection; None if there is none."""
    if not parts or not fatal({"anyOf": [part for _, part in parts]}):
        return None
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        parts = half if fatal({"anyOf": [part for _, part in half]}) else parts[len(half) :]
    return parts[0]


def _children(node: Any) -> Iterator[tuple[Path, Any]]:
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        if key in _MAPS and isinstance(value, Mapping):
            yield from (((key, name), part) for name, part in value.items())
        elif key in _LISTS and isinstance(value, list):
            yield from (((key, index), part) for index, part in enumerate(value))
        elif key in _SUBSCHEMAS:
            yield (key,), value
