"""TOML as messages and documents write it: paths of keys, and values on one line."""

from __future__ import annotations

from datetime import date, time
from typing import Any

Path = tuple[str | int, ...]
"""Keys and array indices from the document's root."""

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_SHOWN = 60
# Python writes no integer of more than 4300 digits in decimal; TOML can have them as hexadecimal.
_MOST_BITS = 1000


def path_text(path: Path) -> str:
    """A path as messages name it: ``models[0].sampling.top_p``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            quoted = part if part and _BARE.issuperset(part) else f'"{escaped(part)}"'
            text += f".{quoted}" if text else quoted
    return text


def escaped(text: str) -> str:
    """The inside of a TOML basic string: one line without control characters."""
    return "".join(_ESCAPES.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)


def literal(value: Any) -> str:
    """A value as TOML; None, which TOML has not, as ``-``."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{escaped(value)}"'
    if isinstance(value, float):
        return f"{value:g}" if value == float(f"{value:g}") else repr(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, dict):
        pairs = ", ".join(f"{path_text((str(k),))} = {literal(v)}" for k, v in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"an integer of {value.bit_length()} bits"
    return str(value)


def shortened(value: Any) -> str:
    """The begin of a value, for a message about it."""
    text = literal(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
