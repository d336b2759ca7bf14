"""Values that stand in a call as bare text: what a schema takes them for.

Formats with a mark around each argument write a string without quotes, so the text alone does not
say whether ``12`` is a number. The reader of such calls and the grammar that enforces them ask
here, and so agree.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})

# Keywords that ask nothing of a value.
_SILENT = frozenset({
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "$comment", "$schema", "$id", "x-guidance", "$defs", "definitions",
})  # fmt: skip
_LENGTHS = frozenset({"minLength", "maxLength"})
_MAX_REFS = 16


def resolved(root: object, schema: object) -> Any:
    """A schema with its own ``$ref`` into `root`'s definitions followed."""
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
    """The schema of an object's member, references followed; None where there is none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return resolved(schema, properties.get(key) if isinstance(properties, Mapping) else None)


def asked(schema: object) -> dict[str, Any]:
    """A schema's keywords that ask something of a value."""
    if not isinstance(schema, Mapping):
        return {}
    return {key: value for key, value in schema.items() if key not in _SILENT}


def alternatives(schema: object) -> list[Any] | None:
    """The values of an enumeration or constant, or None."""
    told = asked(schema)
    if "const" in told:
        return [told["const"]]
    found = told.get("enum")
    return list(found) if isinstance(found, list) else None


def types_of(schema: object) -> frozenset[str] | None:
    """The types that a schema speaks of, whatever else it asks; None where it does not say."""
    told = asked(schema)
    named = told.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(n for n in named if isinstance(n, str))
    branches = told.get("anyOf")
    if isinstance(branches, list) and branches:
        found = [types_of(branch) for branch in branches]
        if all(f is not None for f in found):
            return frozenset().union(*(f for f in found if f is not None))
    return None


def is_bare(schema: object) -> bool:
    """Nothing but types is asked of a value (and of a string alone its length), so that any text
    is one where strings are."""
    told = asked(schema)
    if not told:
        return True
    if set(told) == {"anyOf"}:
        return isinstance(told["anyOf"], list) and all(
            "type" in asked(branch) and set(asked(branch)) == {"type"} for branch in told["anyOf"]
        )
    return set(told) == {"type"} or (
        told.get("type") == "string" and set(told) <= {"type", *_LENGTHS}
    )


def is_text(schema: object) -> bool:
    """The value may be any text, so that nothing in it but the closing mark ends it."""
    types = types_of(schema)
    return "string" in (TYPES if types is None and not asked(schema) else types or ())


def no_constant(name: str) -> None:
    """For JSON readers: NaN and the infinities are no JSON.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} is no JSON value")


def dumps(value: Any) -> str:
    """JSON text that can be sent: a lone surrogate stays an escape.

    Raises:
        ValueError: a number has no JSON spelling.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text


def typed(text: str, schema: object) -> Any:
    """A value written as text, as the type its schema says; text where that cannot be read."""
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
        json.dumps(value, allow_nan=False)  # 1e999 is a number, and has no value
    except (ValueError, RecursionError):
        return _container(stripped, types) or text
    if types is not None and "string" in types and not types & _kinds(value):
        return text
    # Where strings are bare, quotes are part of one.
    bare = types is not None and "string" in types
    return text if bare and isinstance(value, str) else value


def _container(text: str, types: frozenset[str] | None) -> Any:
    """A list or an object that is written as Python does, or None."""
    if types is None or "string" in types or text[:1] not in ("{", "["):
        return None
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return value if types & _kinds(value) else None


def _kinds(value: object) -> set[str]:
    """The types that a JSON value is of."""
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
