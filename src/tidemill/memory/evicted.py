"""Which blocks were evicted lately: fingerprints in a table of fixed size."""

from __future__ import annotations

from array import array

SLOTS = 1 << 14
"""A power of two. A block takes the place of an older one that falls into the same slot."""


class Evicted:
    """Remembers the keys of evicted blocks, about the latest `SLOTS` of them; 64 KiB.

    A key that was not evicted is taken for one with a probability of one in four thousand millions.
    """

    def __init__(self) -> None:
        self._marks = array("I", bytes(4 * SLOTS))

    def add(self, digest: bytes) -> None:
        """A block with this key was evicted."""
        slot, mark = _place(digest)
        self._marks[slot] = mark

    def __contains__(self, digest: bytes) -> bool:
        slot, mark = _place(digest)
        return self._marks[slot] == mark


def _place(digest: bytes) -> tuple[int, int]:
    value = int.from_bytes(digest[:8], "little")
    return value & (SLOTS - 1), (value >> 32) or 1
