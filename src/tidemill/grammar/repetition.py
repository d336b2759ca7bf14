"""Answers that go round in circles: models that do not end write the same to the context's end."""

from __future__ import annotations

SPAN = 8
"""Tokens in a row that are looked up."""

LIMIT = 1_024
"""Tokens in a row that bring no span that was not there before: the answer repeats itself."""


class Repetition:
    """Counts how long an answer has brought nothing new. A pure function of its tokens."""

    __slots__ = ("_recent", "_seen", "length")

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._recent: tuple[int, ...] = ()
        self.length = 0
        """Tokens since the last new span."""

    def add(self, token_id: int) -> None:
        """Take the next token in."""
        self._recent = (*self._recent[1 - SPAN :], token_id)
        key = hash(self._recent)  # of integers: the same in every process
        if key in self._seen:
            self.length += 1
        else:
            self._seen.add(key)
            self.length = 0
