"""A TOML document with the positions of its keys; all that is wrong with it as TOML is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidemill.base.files import open_regular
from tidemill.deployment import toml_text
from tidemill.deployment.positions import MAX_DEPTH, Position, Positions
from tidemill.deployment.problems import DeploymentError, Origin, Problem

MAX_BYTES = 2**20
"""Size of a deployment file."""

# How tomllib says what `Positions.repeated` says with the key and both places.
_REPEATED = ("Cannot overwrite a value", "Cannot declare")
_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)$"


class Document(msgspec.Struct, frozen=True):
    """A parsed document.

    Attributes:
        name: the file as the user named it.
        folder: where its relative paths start.
        tree: its tables.
        positions: of its keys and values.
    """

    name: str
    folder: Path
    tree: dict[str, Any]
    positions: Positions

    def key(self, path: toml_text.Path) -> Origin:
        """Where a key is."""
        return Origin("file", self.name, self.positions.of_key(path))

    def value(self, path: toml_text.Path, note: str = "") -> Origin:
        """Where a value is."""
        return Origin("file", self.name, self.positions.of_value(path), note)


def read_document(path: Path | str) -> Document:
    """Read a deployment file.

    Raises:
        DeploymentError: it cannot be read, or is not valid TOML.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _failed(str(path), None, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a null byte in the path
        raise _failed(str(path), None, f"cannot be read: {error}") from error
    return parse_document(data, str(path), path.absolute().parent)


def parse_document(data: bytes, name: str, folder: Path) -> Document:
    """Parse a deployment file's content.

    Args:
        data: the file's bytes.
        name: the file's name for messages.
        folder: where relative paths start.

    Raises:
        DeploymentError: it is too large, not UTF-8 or not valid TOML.
    """
    import tomllib

    if len(data) > MAX_BYTES:
        raise _failed(name, None, f"is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8-sig", "replace")
        raise _failed(name, _end_of(before), "is not UTF-8 here; save it as UTF-8") from None
    positions = Positions.of(text)
    if positions.too_deep is not None:
        raise _failed(name, positions.too_deep, f"is nested more than {MAX_DEPTH} levels deep")
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DeploymentError(_syntax_problems(name, text, positions, error)) from None
    return Document(name, folder, tree, positions)


def _syntax_problems(name: str, text: str, positions: Positions, error: Exception) -> list[Problem]:
    import re

    problems = [
        Problem(
            Origin("file", name, second),
            toml_text.path_text(path),
            f"is set twice, first on line {first.line}; leave one out",
        )
        for path, first, second in positions.repeated
    ]
    message = str(error)
    found = re.search(_PLACE, message)
    if problems and message.startswith(_REPEATED):
        return problems
    if found is None:
        # Only numbers fail without a place: Python reads no decimal of more than 4300 digits.
        long = re.search(r"[0-9_]{4000,}", text)
        position = _end_of(text[: long.start()] if long else "")
        message = "is no number that can be read: it has too many digits" if long else message
    else:
        line, column = found.groups()
        position = Position(int(line), int(column)) if line else _end_of(text)
        message = message[: found.start()]
        message = f"is not valid TOML here: {message[:1].lower()}{message[1:]}"
    return [*problems, Problem(Origin("file", name, position), "", message)]


def _end_of(text: str) -> Position:
    return Position(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


def _failed(name: str, position: Position | None, message: str) -> DeploymentError:
    return DeploymentError([Problem(Origin("file", name, position), "", message)])
