"""Types and equality of JSON values, as JSON Schema defines them."""

from __future__ import annotations

import json
from typing import Any


def kinds_of(value: Any) -> tuple[str, ...]:
    """The JSON Schema types of a value; a whole number is both an integer and a number."""
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int | float):
        return ("integer", "number") if value == int(value) else ("number",)
    for kind, name in ((str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return (name,)
    return ("null",)


def comparable(value: Any) -> str:
    """A text that is equal for equal values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return f"[{','.join(map(comparable, value))}]"
    if isinstance(value, dict):
        parts = (f"{json.dumps(key)}:{comparable(inner)}" for key, inner in sorted(value.items()))
        return f"{{{','.join(parts)}}}"
    return json.dumps(value)
