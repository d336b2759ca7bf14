"""Finds the end of a JSON value in a stream of characters, in one pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')  # inside a string
_LENIENT = re.compile(r'[^"\\]+')
# An unclosed string extends to the end, or each quote in it would start another search.
_STRING = re.compile(r'"(?:\\.|[^"\\])*(?:"|\\?\Z)', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_SPACE = re.compile(r"[ \t\r\n]+")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")


class State(Enum):
    """The state of a scan."""

    MORE = 1  # the value is incomplete
    DONE = 2  # the value has ended
    WRONG = 3  # the next character cannot continue the value


@dataclass(slots=True)
class Member:
    """A member of the outermost object: its key, its value's first character, and the offsets where
    the value starts and ends (-1: not yet)."""

    key: str
    start: int
    first: str
    end: int = -1


class JsonScan:
    """Finds the end of one JSON object or list, and the members of the outermost object.

    It checks the structure only: strings, nesting, separators. A JSON parser validates the text
    afterwards.

    Args:
        lenient: raw control characters are allowed in strings; see `escaped`.

    Attributes:
        seen: characters consumed so far; members' offsets count from the first.
        members: of the outermost object, in order.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self._plain = _LENIENT if lenient else _PLAIN
        self.seen = 0
        self.members: list[Member] = []
        self._stack: list[str] = []
        self._in_string = False
        self._escaped = False
        self._key: list[str] | None = None  # pieces of the current key
        self._name: str | None = None  # the last complete key
        self._expects_key = False
        self._expects_value = False

    @property
    def inside(self) -> bool:
        """The text so far ends within a string or a nested value."""
        return self._in_string or len(self._stack) > 1

    def feed(self, chunk: str) -> tuple[State, int]:
        """Scan a chunk; return the state and how many of its characters belong to the value."""
        at, end = 0, len(chunk)
        while at < end:
            if self._in_string:
                after = self._string(chunk, at)
                if after == at:
                    return self._left(State.WRONG, at)
                at = after
                continue
            char = chunk[at]
            if char in " \t\r\n":
                at = _SPACE.match(chunk, at).end()  # type: ignore[union-attr]
                continue
            if not self._stack and char not in "{[":
                return self._left(State.WRONG, at)
            if self._expects_value and len(self._stack) == 1:
                self.members.append(Member(self._name or "", self.seen + at, char))
                self._expects_value = False
            if char == '"':
                self._in_string = True
                if len(self._stack) == 1 and self._expects_key:
                    self._key, self._expects_key = [], False
                at += 1
            elif char in "{[":
                self._expects_key = char == "{" and not self._stack
                self._stack.append(char)
                at += 1
            elif char in "}]":
                if self._stack[-1] != ("{" if char == "}" else "["):
                    return self._left(State.WRONG, at)
                self._stack.pop()
                at += 1
                if len(self._stack) == 1:
                    self._close(self.seen + at)
                elif not self._stack:
                    self._close(self.seen + at - 1)
                    return self._left(State.DONE, at)
            elif char == ",":
                if len(self._stack) == 1:
                    self._close(self.seen + at)
                    self._expects_key = self._stack[0] == "{"
                at += 1
            elif char == ":":
                if len(self._stack) == 1 and self._name is not None:
                    self._expects_value = True
                at += 1
            else:
                scalar = _SCALAR.match(chunk, at)
                if scalar is None:
                    return self._left(State.WRONG, at)
                at = scalar.end()
        return self._left(State.MORE, at)

    def _left(self, state: State, at: int) -> tuple[State, int]:
        self.seen += at
        return state, at

    def _string(self, chunk: str, at: int) -> int:
        """Scan within a string; return the new offset, or `at` for an invalid character."""
        if self._escaped:
            self._escaped = False
            self._note(chunk[at])
            return at + 1
        plain = self._plain.match(chunk, at)
        if plain is not None:
            self._note(plain.group())
            return plain.end()
        char = chunk[at]
        if char == "\\":
            self._escaped = True
            self._note(char)
            return at + 1
        if char != '"':
            return at  # a raw control character
        self._in_string = False
        if self._key is not None:
            self._name, self._key = "".join(self._key), None
        elif len(self._stack) == 1:
            self._close(self.seen + at + 1)
        return at + 1

    def _note(self, text: str) -> None:
        if self._key is not None:
            self._key.append(text)

    def _close(self, offset: int) -> None:
        if self.members and self.members[-1].end < 0:
            self.members[-1].end = offset


def escaped(text: str) -> str:
    """Escape raw control characters in a JSON text's strings; models write raw line breaks."""
    if _CONTROL.search(text) is None:
        return text
    return _STRING.sub(lambda found: _CONTROL.sub(_escape, found[0]), text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}" if found[0] not in _SHORT else _SHORT[found[0]]


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
