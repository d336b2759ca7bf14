"""Text of a wanted length without a tokenizer: words that are one token in most vocabularies.

A prompt is a list of segments. A segment's key and length determine its content, so that equal keys
give equal prefixes: shared system prompts, blocks of a replayed trace, earlier turns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

_WORDS = [
    "time", "year", "people", "way", "day", "man", "thing", "woman",
    "life", "child", "world", "school", "state", "family", "student", "group",
    "country", "problem", "hand", "part", "place", "case", "week", "company",
    "system", "program", "question", "work", "number", "night", "point", "home",
    "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business",
    "issue", "side", "kind", "head", "house", "service", "friend", "father",
    "power", "hour", "game", "line", "end", "member", "law", "car",
]  # fmt: skip
_POOL = 1 << 16
_MARK = 4  # the first words of a segment spell its key


class Segment(NamedTuple):
    """A part of a prompt: `length` tokens that depend on `key` alone."""

    key: int
    length: int


class Vocabulary:
    """Draws segments from a pool that is made once, so that a long prompt costs a copy.

    Args:
        seed: equal seeds give equal content.
        vocab: token ids are below this.
        ids: whether prompts are token ids instead of words.
    """

    def __init__(self, seed: int, vocab: int, ids: bool) -> None:
        draws = random.Random(f"words {seed}")
        self._symbols = [str(i) for i in range(vocab)] if ids else _WORDS
        self._separator = "," if ids else " "
        self._keys = draws.randrange(1 << 30)
        pool = draws.choices(self._symbols, k=_POOL)
        self._text = self._separator.join(pool + pool)
        self._offsets = [0]
        for symbol in pool + pool:
            self._offsets.append(self._offsets[-1] + len(symbol) + 1)

    def _segment(self, segment: Segment) -> str:
        base, left, mark = len(self._symbols), segment.key ^ self._keys, []
        for _ in range(min(_MARK, segment.length)):
            left, digit = divmod(left, base)
            mark.append(self._symbols[digit])
        parts = [self._separator.join(mark)]
        place = (segment.key * 2654435761 + self._keys) % _POOL
        more = segment.length - len(mark)
        while more > 0:
            taken = min(more, _POOL)
            start, end = self._offsets[place], self._offsets[place + taken]
            parts.append(self._text[start : end - 1])
            more -= taken
        return self._separator.join(parts)

    def text(self, segments: Sequence[Segment]) -> str:
        """Words, or token ids as the inside of a JSON list."""
        return self._separator.join(self._segment(s) for s in segments if s.length > 0)

    def ids(self, segments: Sequence[Segment]) -> list[int]:
        """Token ids; the vocabulary must have been made with `ids`."""
        return [int(i) for i in self.text(segments).split(",") if i]
