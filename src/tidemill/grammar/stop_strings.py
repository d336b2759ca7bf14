"""Stop strings of beams, found in the bytes of their tokens."""

from __future__ import annotations

from tidemill.contract.program import StopStrings
from tidemill.grammar.vocabulary import Vocabulary


class StopTail:
    """The end of an output's text, as far as a stop string may reach back.

    Args:
        stops: the strings.
        vocabulary: the model's.
    """

    __slots__ = ("_longest", "_stops", "_tail", "_texts", "_tokens", "_vocabulary")

    def __init__(self, stops: StopStrings, vocabulary: Vocabulary) -> None:
        self._stops, self._vocabulary = stops, vocabulary
        self._texts = [text.encode() for text in stops.texts]
        self._longest = max(map(len, self._texts))
        self._tail = b""
        self._tokens = 0

    def add(self, token_id: int) -> bool:
        """Add a token; True if it completes a stop string that ends the output."""
        self._tokens += 1
        piece = self._vocabulary.piece(token_id, special=self._stops.special)
        met = any(
            text in self._tail[max(0, len(self._tail) - len(text) + 1) :] + piece
            for text in self._texts
        )
        text = self._tail + piece
        self._tail = text[max(0, len(text) - self._longest + 1) :]
        return met and self._tokens >= self._stops.min_tokens

    def fork(self) -> StopTail:
        """Another one in the same state."""
        made = StopTail(self._stops, self._vocabulary)
        made._tail, made._tokens = self._tail, self._tokens
        return made
