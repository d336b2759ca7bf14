"""Detects endless repetition: a model that does not end repeats itself up to the context limit."""

from __future__ import annotations

SPAN = 8
"""Length of the token n-grams that are compared."""

LIMIT = 1_024
"""Tokens in a row without a new n-gram, after which the answer counts as repetitive."""


class Repetition:
    """Counts the tokens since the last new n-gram. A pure function of the answer's tokens."""

    __slots__ = ("_recent", "_seen", "length")

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._recent: tuple[int, ...] = ()
        self.length = 0
        """Tokens since the last new n-gram."""

    def add(self, token_id: int) -> None:
        """Add the next token."""
        self._recent = (*self._recent[1 - SPAN :], token_id)
        key = hash(self._recent)  # hashes of integers are the same in every process
        if key in self._seen:
            self.length += 1
        else:
            self._seen.add(key)
            self.length = 0

    def fork(self) -> Repetition:
        """Another one in the same state."""
        made = Repetition()
        made._seen, made._recent, made.length = set(self._seen), self._recent, self.length
        return made
