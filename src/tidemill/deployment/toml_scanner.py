"""Finds the positions of keys and values in a TOML document.

The scanner walks keys and skips values. It relies on tomllib for validity: in an invalid document
it stops at the first place it cannot read and keeps what it has found until there.
"""

from __future__ import annotations

import contextlib
import re
import tomllib

from tidemill.deployment.positions import MAX_DEPTH, Position, Positions
from tidemill.deployment.toml_text import Path


def scan(text: str, found: Positions) -> None:
    """Add the positions of a document with line feeds alone to `found`."""
    with contextlib.suppress(_Unreadable):
        _Scanner(text, found).document()


class _Unreadable(Exception):
    """The document is invalid here, or nested too deeply."""


_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
# Whitespace, newlines and comments.
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*+")
_SCALAR = re.compile(r"[^,\]}#\n]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\[^\n])*+"')
_LITERAL = re.compile(r"'[^'\n]*'")


class _Scanner:
    def __init__(self, text: str, found: Positions) -> None:
        self._text = text
        self._at = 0
        self._found = found
        self._assigned: set[Path] = set()  # by `key = value`, dotted prefixes not included
        self._headers: set[Path] = set()
        self._elements: dict[Path, int] = {}  # array of tables -> number of its elements
        self._line, self._line_start, self._counted = 1, 0, 0

    def document(self) -> None:
        """Scan the whole text."""
        table: Path = ()
        while self._skip(_BLANK) < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._assignment(table, 0)

    def _header(self) -> Path:
        """Scan ``[a.b]`` or ``[[a.b]]``; returns the table's path."""
        several = self._text.startswith("[[", self._at)
        self._at += 2 if several else 1
        path: Path = ()
        parts = self._key()
        for place, (name, position) in enumerate(parts):
            path = (*path, name)
            last = place == len(parts) - 1
            self._found.keys.setdefault(path, position)
            if last and several:
                count = self._elements.get(path, 0)
                self._elements[path] = count + 1
                path = (*path, count)
                self._found.keys[path] = position
            elif last:
                if path in self._headers or path in self._assigned:
                    self._found.repeated.append((path, self._found.keys[path], position))
                self._headers.add(path)
            elif path in self._elements:
                path = (*path, self._elements[path] - 1)
        self._expect("]]" if several else "]")
        return path

    def _assignment(self, table: Path, depth: int) -> None:
        path = table
        for name, position in self._key():
            path = (*path, name)
            first = self._found.keys.setdefault(path, position)
        if path in self._assigned or path in self._headers:
            self._found.repeated.append((path, first, position))
        self._assigned.add(path)
        self._expect("=")
        self._value(path, depth)

    def _key(self) -> list[tuple[str, Position]]:
        """Scan a dotted key: its parts and where each begins."""
        parts: list[tuple[str, Position]] = []
        while True:
            self._skip(_SPACE)
            start, position = self._at, self._position()
            if len(parts) == MAX_DEPTH:
                self._found.too_deep = position
                raise _Unreadable
            for form in (_BASIC, _LITERAL, _BARE):
                if match := form.match(self._text, start):
                    self._at = match.end()
                    parts.append((_unquoted(match[0]), position))
                    break
            else:
                raise _Unreadable
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _value(self, path: Path, depth: int) -> None:
        """Scan a value; `path` is recorded at its first character."""
        self._skip(_SPACE)
        self._found.values[path] = self._position()
        start = self._text[self._at : self._at + 1]
        if start in ("[", "{") and depth == MAX_DEPTH:
            self._found.too_deep = self._position()
            raise _Unreadable
        if start == "[":
            self._array(path, depth + 1)
        elif start == "{":
            self._inline_table(path, depth + 1)
        elif start in ('"', "'"):
            self._string(start)
        elif match := _SCALAR.match(self._text, self._at):
            self._at = match.end()
        else:
            raise _Unreadable

    def _array(self, path: Path, depth: int) -> None:
        self._at += 1
        index = 0
        while not self._closed("]"):
            self._value((*path, index), depth)
            index += 1
            self._separated("]")

    def _inline_table(self, path: Path, depth: int) -> None:
        self._at += 1
        while not self._closed("}"):
            self._assignment(path, depth)
            self._separated("}")

    def _closed(self, end: str) -> bool:
        self._skip(_BLANK)
        if not self._text.startswith(end, self._at):
            return False
        self._at += 1
        return True

    def _separated(self, end: str) -> None:
        self._skip(_BLANK)
        if not self._text.startswith(end, self._at):
            self._expect(",")

    def _string(self, quote: str) -> None:
        if not self._text.startswith(quote * 3, self._at):
            match = (_BASIC if quote == '"' else _LITERAL).match(self._text, self._at)
            if match is None:
                raise _Unreadable
            self._at = match.end()
            return
        at = self._at + 3
        while not self._text.startswith(quote * 3, at):
            if at >= len(self._text):
                raise _Unreadable
            at += 2 if quote == '"' and self._text[at] == "\\" else 1
        at += 3
        # One or two quotes before the closing ones are part of the string.
        for _ in range(2):
            at += self._text.startswith(quote, at)
        self._at = at

    def _skip(self, form: re.Pattern[str]) -> int:
        match = form.match(self._text, self._at)
        assert match is not None, "these forms match the empty text"
        self._at = match.end()
        return self._at

    def _expect(self, mark: str) -> None:
        self._skip(_SPACE)
        if not self._text.startswith(mark, self._at):
            raise _Unreadable
        self._at += len(mark)

    def _position(self) -> Position:
        # Positions are asked for in ascending order: lines are counted once.
        lines = self._text.count("\n", self._counted, self._at)
        if lines:
            self._line += lines
            self._line_start = self._text.rindex("\n", self._counted, self._at) + 1
        self._counted = self._at
        return Position(self._line, self._at - self._line_start + 1)


def _unquoted(key: str) -> str:
    if key.startswith("'"):
        return key[1:-1]
    if not key.startswith('"'):
        return key
    try:
        return str(next(iter(tomllib.loads(f"{key} = 0"))))
    except ValueError:
        raise _Unreadable from None
