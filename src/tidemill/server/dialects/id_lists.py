"""Long lists of token ids in a JSON text, read in slices.

Parsing a long list holds the GIL for tens of milliseconds, and validating it does so again. So long
lists are parsed here, some thousands of numbers at a time. In the text for the JSON parser each is
replaced by a constant that JSON does not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

LONG_BYTES = 4096
"""Length of a list's text from which it is parsed in slices."""

_SLICE_BYTES = 2**16
_NUMBERS = re.compile(rb"[0-9, \t\r\n]*+")
_STAND_IN = b"NaN"


class Ids(list[int]):
    """A list that is known to hold whole numbers of at least 0, and nothing else."""


def loads(body: bytes, constant: Callable[[str], None], *, ids: bool = True, **hooks: Any) -> Any:
    """`json.loads`, with long lists as `Ids`.

    Args:
        body: JSON text.
        constant: called for constants that are not JSON (``NaN``, ...); must raise.
        ids: False: long lists are skipped and replaced by empty ones.
        hooks: see `json.loads`.

    Raises:
        ValueError: as `json.loads`; UnicodeDecodeError for what is no UTF-8.
    """
    rest = bytearray(body)
    lists: list[Ids] = []
    for start, end in _spans(body):
        found = _read(body, start, end) if ids else Ids()
        if found is not None:
            lists.append(found)
            # Padded to the length of the list, so that positions in errors stay right.
            rest[start:end] = _STAND_IN.ljust(end - start)
    lists.reverse()

    def stands_in(name: str) -> Ids | None:
        # In the order of the text; a surplus NaN is the client's own.
        if name == "NaN" and lists:
            return lists.pop()
        constant(name)
        return None

    return json.loads(rest.decode(), parse_constant=stands_in, **hooks)


def _spans(body: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each long list, brackets included."""
    # Without escapes, of the same length, every quotation mark opens or closes a string.
    plain = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    seen, quotes, start = 0, 0, plain.find(b"[")
    while start >= 0:
        end = _end(plain, start + 1)
        if end - start > LONG_BYTES and plain[end : end + 1] == b"]":
            quotes += plain.count(b'"', seen, start)
            seen = start
            if quotes % 2 == 0:
                yield start, end + 1
        start = plain.find(b"[", end)


def _end(plain: bytes, position: int) -> int:
    """The end of the numbers that begin at a position."""
    while True:
        match = _NUMBERS.match(plain, position, position + _SLICE_BYTES)
        assert match is not None
        if match.end() < position + _SLICE_BYTES:
            return match.end()
        position = match.end()


def _read(body: bytes, start: int, end: int) -> Ids | None:
    """The list between two positions; None if it is invalid, which the parser then reports."""
    found = Ids()
    position, last = start + 1, end - 1
    while position < last:
        comma = body.find(b",", min(position + _SLICE_BYTES, last), last)
        cut = last if comma < 0 else comma
        try:
            some = json.loads(b"[%b]" % body[position:cut])
        except ValueError:
            return None
        if not some:
            return None
        found += some
        position = cut + 1
    return found if position > last else None
