"""Parses an object whose keys are bare and whose strings are delimited by a special mark.

``{city:<|"|>Rome<|"|>,days:[1,2],on:true}``: JSON's structure without its quotes and escapes.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tidemill.text.parsers.json_scan import State
from tidemill.text.parsers.values import no_constant

_CONSTANTS = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}


class UnquotedScan:
    """Finds the end of one object, as `JsonScan` does for JSON.

    Args:
        quote: the mark around strings.
    """

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._find = re.compile(rf"{re.escape(quote)}|[{{}}\[\]]")
        self._in_string = False
        self._depth = 0
        self._tail = ""  # held back: may be the beginning of the mark

    def feed(self, chunk: str) -> tuple[State, int]:
        """Scan a chunk; return the state and how many of its characters belong to the object."""
        window, ahead = self._tail + chunk, len(self._tail)
        if not self._depth and window.lstrip()[:1] not in ("{", ""):
            return State.WRONG, 0
        end = 0
        for found in self._find.finditer(window):
            token, end = found.group(), found.end()
            if token == self._quote:
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if token in "{[" else -1
                if self._depth <= 0:
                    return State.DONE, end - ahead
        rest = window[end:]
        keep = next(
            (n for n in range(min(len(rest), len(self._quote) - 1), 0, -1)
             if self._quote.startswith(rest[-n:])),
            0,
        )  # fmt: skip
        self._tail = rest[len(rest) - keep :]
        return State.MORE, len(chunk)


def unquoted(text: str, quote: str) -> Any:
    """Parse a complete text.

    Raises:
        ValueError: malformed text.
    """
    value, end = _value(text, _skip(text, 0), quote)
    if text[end:].strip():
        raise ValueError("text follows the object")
    return value


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _value(text: str, at: int, quote: str) -> tuple[Any, int]:
    if text.startswith(quote, at):
        return _string(text, at, quote)
    if text[at : at + 1] in ("{", "["):
        return _container(text, at, quote)
    end = at
    while end < len(text) and text[end] not in ",]}":
        end += 1
    word = text[at:end].strip()
    if word in _CONSTANTS:
        return _CONSTANTS[word], end
    try:
        return json.loads(word, parse_constant=no_constant), end
    except ValueError:
        return word, end  # a string without its marks


def _string(text: str, at: int, quote: str) -> tuple[str, int]:
    end = text.index(quote, at + len(quote))
    return text[at + len(quote) : end], end + len(quote)


def _container(text: str, at: int, quote: str) -> tuple[Any, int]:
    named = text[at] == "{"
    close = "}" if named else "]"
    members: dict[str, Any] = {}
    items: list[Any] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != close:
        if named:
            key, at = _key(text, at, quote)
            members[key], at = _value(text, _skip(text, at), quote)
        else:
            item, at = _value(text, at, quote)
            items.append(item)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != close:
            raise ValueError("expected a comma or the end of the object")
    return (members if named else items), at + 1


def _key(text: str, at: int, quote: str) -> tuple[str, int]:
    if text.startswith(quote, at):
        key, at = _string(text, at, quote)
        end = text.index(":", at)
    else:
        end = text.index(":", at)
        key = text[at:end].strip()
    return key, end + 1
