"""Paths in a schema, and the error that names one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.base.errors import TidemillError, bad_request
from tidemill.grammar.schema import lookaround

Path = tuple[str | int, ...]


def path_of(param: str, path: Path) -> str:
    """``response_format.json_schema.schema.properties.a``; list indices in brackets."""
    text = param
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text[:300]


def rejected(param: str, path: Path, message: str) -> TidemillError:
    """The error for a schema whose keyword at `path` cannot be enforced."""
    at = path_of(param, path)
    return bad_request(at, f"{at}: {message}")


def patterns(schema: Any, path: Path = ()) -> Iterator[tuple[str, str]]:
    """Every regular expression of a schema that reaches the grammar library, after its path
    relative to the schema."""
    if isinstance(schema, Mapping):
        pattern = schema.get("pattern")
        within = path[-1:] != ("properties",)
        if within and isinstance(pattern, str) and not lookaround.is_needed(pattern):
            yield path_of("", (*path, "pattern")), pattern
        if isinstance(schema.get("patternProperties"), Mapping):
            for name in schema["patternProperties"]:
                yield path_of("", (*path, "patternProperties", name)), name
        for key, value in schema.items():
            if key not in ("enum", "const"):
                yield from patterns(value, (*path, key))
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from patterns(value, (*path, index))
