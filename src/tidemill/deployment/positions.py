"""Positions of keys and values in a TOML document; tomllib parses the values and keeps none."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tidemill.deployment.toml_text import Path

MAX_DEPTH = 32
"""Levels of nested arrays and tables, and parts of one dotted key."""


class Position(NamedTuple):
    """Line and column, counted from 1 in characters."""

    line: int
    column: int


class Positions(msgspec.Struct):
    """Where each key and value of a document is.

    Attributes:
        keys: path -> first mention of the key (a table's header included).
        values: path -> begin of the value; also of the elements of arrays.
        repeated: keys and tables that are set twice: path, first and second position.
        too_deep: position of the first value nested deeper than `MAX_DEPTH`, if any.
    """

    keys: dict[Path, Position] = {}
    values: dict[Path, Position] = {}
    repeated: list[tuple[Path, Position, Position]] = []
    too_deep: Position | None = None

    @classmethod
    def of(cls, text: str) -> Positions:
        """Scan a document."""
        from tidemill.deployment.toml_scanner import scan

        found = cls()
        scan(text.replace("\r\n", "\n"), found)
        return found

    def of_key(self, path: Path) -> Position:
        """Position of a key; of an absent one: of the closest table around it."""
        while path:
            if path in self.keys:
                return self.keys[path]
            path = path[:-1]
        return Position(1, 1)

    def of_value(self, path: Path) -> Position:
        """Position of a value; of a table without one: of its key."""
        return self.values.get(path) or self.of_key(path)
