"""Types of settings: what a value must be, how it is read, and how it is shown.

A kind reads values as TOML and click deliver them. Its reader raises ValueError: with a message
where a remedy is known, without one where ``must be <what>`` says it all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

import msgspec

from tidemill.base.durations import duration_seconds
from tidemill.base.errors import TidemillError
from tidemill.base.sizes import exact_size, parse_size
from tidemill.deployment.toml_text import literal

FOREVER = math.inf
"""A duration without end, as a number of seconds."""

UNBOUNDED = 2**53
"""The largest whole number where only the lower end is worth saying."""

MAX_VALUES = 1000
"""Values of one list."""

MAX_TEXT = 100_000
"""Characters of one text."""


class Kind(msgspec.Struct, frozen=True):
    """A type of values.

    Attributes:
        what: completes ``must be ...``.
        read: value, folder of relative paths -> the value as the server uses it.
        flag: type of the flag on the command line.
        several: whether the value is a list; its flag is repeatable.
        choices: the permitted values of a text.
        show: the used value as TOML text.
    """

    what: str
    read: Callable[[Any, Path], Any]
    flag: type = str
    several: bool = False
    choices: tuple[str, ...] = ()
    show: Callable[[Any], str] = lambda value: literal(value)


def integer(low: int, high: int) -> Kind:
    """Whole numbers of a range."""

    def read(value: Any, _: Path) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError
        return value

    bounds = f"from {low} to {high}" if high < UNBOUNDED else f"of at least {low}"
    return Kind(f"a whole number {bounds}", read, int)


def number(low: float, high: float, unit: str = "", *, above: bool = False) -> Kind:
    """Finite numbers of a range; with `above` its lower end is excluded."""
    least = f"above {low:g} and at most {high:.10g}" if above else f"from {low:g} to {high:.10g}"

    def read(value: Any, _: Path) -> float:
        if type(value) not in (int, float) or not low <= value <= high or (above and value == low):
            raise ValueError
        return float(value)

    return Kind(f"a number {least}{unit and f' ({unit})'}", read, float)


def switch() -> Kind:
    """``true`` or ``false``."""

    def read(value: Any, _: Path) -> bool:
        if type(value) is not bool:
            raise ValueError
        return value

    return Kind("true or false", read, bool)


def choice(names: Sequence[str | int]) -> Kind:
    """One of some names or numbers."""
    texts = tuple(n for n in names if isinstance(n, str))

    def read(value: Any, _: Path) -> str | int:
        if type(value) in (str, int) and value in names:
            found: str | int = value
            return found
        raise ValueError

    what = "one of " + ", ".join(literal(n) for n in names)
    return Kind(what, read, str if texts else int, choices=texts)


def text(what: str = "a text") -> Kind:
    """Any text that is not empty."""

    def read(value: Any, _: Path) -> str:
        if type(value) is not str or not value.strip():
            raise ValueError
        if len(value) > MAX_TEXT:
            raise ValueError(f"has {len(value)} characters; at most {MAX_TEXT} are taken")
        return value

    return Kind(what, read)


def checked(what: str, check: Callable[[str], object]) -> Kind:
    """A text that `check` accepts: it raises ValueError or TidemillError for others."""
    plain = text()

    def read(value: Any, folder: Path) -> str:
        found: str = plain.read(value, folder)
        try:
            check(found)
        except TidemillError:
            raise ValueError from None
        return found

    return Kind(what, read)


def several(kind: Kind, what: str, *, most: int = MAX_VALUES) -> Kind:
    """A list of at most `most` distinct values; a single value stands for a list of one."""

    def read(value: Any, folder: Path) -> tuple[Any, ...]:
        values = value if isinstance(value, list | tuple) else [value]
        if len(values) > most:
            raise ValueError(f"has {len(values)} values; at most {most} are taken")
        found = []
        for index, one in enumerate(values):
            try:
                found.append(kind.read(one, folder))
            except ValueError as error:
                raise ElementError(index, one, kind.what, str(error)) from None
        for index, one in enumerate(found):
            if one in found[:index]:
                message = "is listed twice; leave one out"
                raise ElementError(index, one, kind.what, message)
        return tuple(found)

    return Kind(what, read, kind.flag, several=True)


class ElementError(ValueError):
    """An element of a list is wrong."""

    def __init__(self, index: int, value: Any, what: str, message: str) -> None:
        super().__init__(message)
        self.index, self.value, self.what = index, value, what


def size() -> Kind:
    """Bytes: ``"4GiB"`` or a whole number."""

    def read(value: Any, _: Path) -> int:
        if type(value) not in (int, str):
            raise ValueError
        found = parse_size(str(value))
        if found > 2**60:
            raise ValueError("is more memory than there is; check the unit")
        return found

    return Kind(
        'a size above 0 such as "4GiB", "512MiB" or a number of bytes',
        read,
        show=lambda value: "-" if value is None else f'"{exact_size(value)}"',
    )


def duration() -> Kind:
    """Seconds, ``"90s"``, ``"1h30m"``; ``"forever"`` or a negative number has no end."""

    def read(value: Any, _: Path) -> float:
        if type(value) is str:
            value = duration_seconds(value)
        if type(value) not in (int, float) or value != value or value > _LONGEST:
            raise ValueError
        return FOREVER if value < 0 else float(value)

    def show(value: Any) -> str:
        return '"forever"' if value == FOREVER else literal(value)

    return Kind(
        'a number of seconds, a duration such as "90s" or "1h30m", or "forever"', read, show=show
    )


_LONGEST = 10 * 365 * 86400


def file(what: str = "the path of a file") -> Kind:
    """A regular file that exists; relative paths start at the deployment file's folder."""
    return _path(what, Path.is_file, "no such file")


def folder(what: str = "the path of a folder") -> Kind:
    """A folder that exists."""
    return _path(what, Path.is_dir, "no such folder")


def _path(what: str, exists: Callable[[Path], bool], missing: str) -> Kind:
    def read(value: Any, base: Path) -> str:
        found = absolute(value, base)
        if not exists(found):
            raise ValueError(f"{missing}: {found}")
        return str(found)

    return Kind(what, read)


def absolute(value: Any, base: Path) -> Path:
    """A path as an absolute one; ``~`` is the user's folder. Raises ValueError for no path."""
    if isinstance(value, Path):
        value = str(value)
    if type(value) is not str or not value.strip() or "\0" in value or len(value) > 4096:
        raise ValueError
    try:
        return base / Path(value).expanduser()
    except RuntimeError:
        raise ValueError("names a user that does not exist") from None


def looks_like_path(text: str) -> bool:
    """Whether a text can only be a path, and no name of a model or template."""
    return text.startswith(("/", "./", "../", "~")) or text in (".", "..")


def path_or_name(what: str, is_path: Callable[[str, Path], bool]) -> Kind:
    """A path that exists, as an absolute one, or a name.

    Args:
        what: completes ``must be ...``.
        is_path: whether a text that does not begin as a path is one; given the folder as well.
    """

    def read(value: Any, base: Path) -> str:
        found = absolute(value, base)
        if not looks_like_path(value) and not is_path(value, base):
            return str(value)
        try:
            found.stat()
        except OSError:
            raise ValueError(f"no such file or folder: {found}") from None
        return str(found)

    return Kind(what, read)


def mapping(what: str) -> Kind:
    """A table of any JSON values."""

    def read(value: Any, _: Path) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError
        _check_json(value)
        return dict(value)

    return Kind(what, read)


def tables(what: str) -> Kind:
    """A list of tables of any JSON values."""

    def read(value: Any, _: Path) -> list[dict[str, Any]]:
        if type(value) is not list or any(type(one) is not dict for one in value):
            raise ValueError
        _check_json(value)
        return list(value)

    return Kind(what, read)


def _check_json(value: Any) -> None:
    if isinstance(value, dict):
        for one in value.values():
            _check_json(one)
    elif isinstance(value, list):
        for one in value:
            _check_json(one)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("holds a number that is not finite")
    elif isinstance(value, date | time):
        raise ValueError("holds a date or time; write it as a text in quotes")
