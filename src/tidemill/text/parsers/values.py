"""Typing of values that are written as unquoted text, by their JSON schema.

Formats with marks around each argument write strings without quotes, so the text alone does not
show whether ``12`` is a number. The reader of such calls and the grammar that enforces them both
use this module, so they agree.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})

# Keywords that do not constrain a value.
_SILENT = frozenset({
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "$comment", "$schema", "$id", "x-guidance", "$defs", "definitions",
})  # fmt: skip
_LENGTHS = frozenset({"minLength", "maxLength"})
_MAX_REFS = 16


def resolved(root: object, schema: object) -> Any:
    """A schema with its top-level ``$ref`` into `root` resolved."""
    for _ in range(_MAX_REFS):
        target = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(target, str) or not target.startswith("#/"):
            return schema
        found: object = root
        for step in target[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping | bool):
            return schema
        schema = found
    return schema


def property_of(schema: object, key: str) -> Any:
    """The schema of an object's member, references resolved; None if it has none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return resolved(schema, properties.get(key) if isinstance(properties, Mapping) else None)


def validation_keywords(schema: object) -> dict[str, Any]:
    """A schema's keywords that constrain a value."""
    if not isinstance(schema, Mapping):
        return {}
    return {key: value for key, value in schema.items() if key not in _SILENT}


def alternatives(schema: object) -> list[Any] | None:
    """The values of an enumeration or constant, or None."""
    keywords = validation_keywords(schema)
    if "const" in keywords:
        return [keywords["const"]]
    found = keywords.get("enum")
    return list(found) if isinstance(found, list) else None


def types_of(schema: object) -> frozenset[str] | None:
    """The types that a schema names, whatever its other keywords; None if it names none."""
    keywords = validation_keywords(schema)
    named = keywords.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(n for n in named if isinstance(n, str))
    branches = keywords.get("anyOf")
    if isinstance(branches, list) and branches:
        found = [types_of(branch) for branch in branches]
        if all(f is not None for f in found):
            return frozenset().union(*(f for f in found if f is not None))
    return None


def is_bare(schema: object) -> bool:
    """The schema constrains only types (and the length of a plain string), so any text is valid if
    strings are allowed."""
    keywords = validation_keywords(schema)
    if not keywords:
        return True
    if set(keywords) == {"anyOf"}:
        return isinstance(keywords["anyOf"], list) and all(
            "type" in validation_keywords(branch) and set(validation_keywords(branch)) == {"type"}
            for branch in keywords["anyOf"]
        )
    return set(keywords) == {"type"} or (
        keywords.get("type") == "string" and set(keywords) <= {"type", *_LENGTHS}
    )


def is_text(schema: object) -> bool:
    """The value may be any text, so only the closing mark ends it."""
    types = types_of(schema)
    return "string" in (TYPES if types is None and not validation_keywords(schema) else types or ())


def no_constant(name: str) -> None:
    """`parse_constant` for `json.loads`: NaN and the infinities are not JSON.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} is not a JSON value")


def dumps(value: Any) -> str:
    """JSON text that can be encoded as UTF-8: lone surrogates stay escaped.

    Raises:
        ValueError: NaN or an infinity.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text


def typed(text: str, schema: object) -> Any:
    """Convert text to the type its schema names; text that cannot be converted stays a string."""
    known = alternatives(schema)
    if known is not None and text in [k for k in known if isinstance(k, str)]:
        return text
    types = types_of(schema)
    if types == frozenset({"string"}):
        return text
    stripped = text.strip()
    if stripped in ("True", "False") and types is not None and "boolean" in types:
        return stripped == "True"
    if stripped == "None" and types is not None and "null" in types:
        return None
    try:
        value = json.loads(stripped, parse_constant=no_constant)
        json.dumps(value, allow_nan=False)  # 1e999 is valid JSON but has no finite value
    except (ValueError, RecursionError):
        return _container(stripped, types) or text
    if types is not None and "string" in types and not types & _kinds(value):
        return text
    # Strings are unquoted, so quotes belong to the string.
    bare = types is not None and "string" in types
    return text if bare and isinstance(value, str) else value


def _container(text: str, types: frozenset[str] | None) -> Any:
    """Parse a list or an object written as a Python literal, or return None."""
    if types is None or "string" in types or text[:1] not in ("{", "["):
        return None
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return value if types & _kinds(value) else None


def _kinds(value: object) -> set[str]:
    """The JSON Schema types of a value."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    if value is None:
        return {"null"}
    return {
        "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
    }
