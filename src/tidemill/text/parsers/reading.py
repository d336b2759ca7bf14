"""What all readers of calls share: their interface, and text up to a mark."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

MAX_HEADER = 1024
"""Characters of a name and what is around it; a longer one is no call."""


@dataclass(slots=True)
class Read:
    """What a reader made of a chunk.

    Attributes:
        taken: characters of the chunk that belong to the calls.
        calls: complete ones, as (name, arguments' JSON text).
        wrong: why what was taken since the last complete call is no call; empty: it may be one.
        plain: with `wrong`: it need not have been meant as a call.
        done: nothing more belongs to the calls.
    """

    taken: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list)
    wrong: str = ""
    plain: bool = False
    done: bool = False


class Reader(Protocol):
    """Reads a body. `name` and `arguments` are what is known of a call that is still open, for
    those who show it as it comes; `arguments` grows."""

    name: str | None
    arguments: list[str]

    @property
    def likely(self) -> str | None:
        """The name that an unfinished or wrong body seems to call, or None."""

    def feed(self, chunk: str) -> Read:
        """More of the body."""


class Until:
    """Text up to the first of some marks, whose characters may come one at a time."""

    def __init__(self, *marks: str) -> None:
        # A mark that holds another one would be found too late.
        self._marks = [m for m in marks if m and not any(o in m for o in marks if o and o != m)]
        self._search = re.compile("|".join(map(re.escape, self._marks))).search
        self._keep = max(map(len, self._marks)) - 1
        self._parts: list[str] = []
        self._tail = ""
        self.size = 0
        self.mark = ""

    def feed(self, chunk: str) -> tuple[str | None, int]:
        """The text before the mark once it is there, and how much of the chunk was taken.

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
