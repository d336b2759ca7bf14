"""Shared by all readers of calls: their interface, and reading up to a mark."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

MAX_HEADER = 1024
"""Maximum characters of a name and its marks; a longer header is not a call."""


@dataclass(slots=True)
class Read:
    """The result of feeding a chunk to a reader.

    Attributes:
        taken: number of characters of the chunk that were consumed.
        calls: complete calls, as (name, arguments' JSON text).
        wrong: why the text since the last complete call is malformed; empty: no error so far.
        plain: with `wrong`: the text need not have been meant as a call.
        done: the calls have ended.
    """

    taken: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list)
    wrong: str = ""
    plain: bool = False
    done: bool = False


class Reader(Protocol):
    """Reads calls. `name` and `arguments` are the known parts of an open call, for streaming;
    `arguments` grows."""

    name: str | None
    arguments: list[str]

    @property
    def likely(self) -> str | None:
        """The function that an unfinished or malformed text seems to call, or None."""

    def feed(self, chunk: str) -> Read:
        """Add text."""


class Until:
    """Reads text up to the first of several marks, in chunks of any size."""

    def __init__(self, *marks: str) -> None:
        # A mark that contains another one would be found too late.
        self._marks = [m for m in marks if m and not any(o in m for o in marks if o and o != m)]
        self._search = re.compile("|".join(map(re.escape, self._marks))).search
        self._keep = max(map(len, self._marks)) - 1
        self._parts: list[str] = []
        self._tail = ""
        self.size = 0
        self.mark = ""

    def feed(self, chunk: str) -> tuple[str | None, int]:
        """Return the text before the mark, once found, and how much of the chunk was consumed.

        `mark` is then the mark that was found.
        """
        window = self._tail + chunk
        found = self._search(window)
        if found is None:
            keep = min(len(window), self._keep)
            self._parts.append(window[: len(window) - keep])
            self._tail = window[len(window) - keep :]
            self.size += len(chunk)
            return None, len(chunk)
        self.mark = found.group()
        self._parts.append(window[: found.start()])
        return "".join(self._parts), found.end() - len(self._tail)
