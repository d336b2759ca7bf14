"""Token ids of segments: equal keys give equal tokens, different ones share none at their start."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tidemill.bench.words import Segment

_POOL = 1 << 16
_MARK = 3  # tokens that spell the key
_BASE = 1 << 20


class Prompts:
    """Makes prompts from a pool that is made once."""

    def __init__(self, seed: int) -> None:
        draws = random.Random(f"tokens {seed}")
        pool = [draws.randrange(_BASE) for _ in range(_POOL)]
        self._pool = tuple(pool + pool)

    def ids(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """The tokens of a prompt."""
        found: tuple[int, ...] = ()
        for key, length in segments:
            mark = (key % _BASE, key // _BASE % _BASE, 1)[: min(_MARK, length)]
            found += mark
            place, more = key * 2654435761 % _POOL, length - len(mark)
            while more > 0:
                taken = min(more, _POOL)
                found += self._pool[place : place + taken]
                more -= taken
        return found
