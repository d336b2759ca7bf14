"""RamTier: blocks in this process's memory, least recently used first to leave."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from tidemill.backends.base import UInt8
from tidemill.contract.moves import Name, TierFigures


class _Held(NamedTuple):
    name: Name
    data: UInt8


class RamTier:
    """See the module docstring. One thread changes it; any may ask for `has` and `figures`.

    Args:
        limit: bytes that the blocks may take.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._nbytes = 0
        self._saved = 0

    def has(self, digest: bytes) -> bool:
        """Whether it has a block of this digest."""
        return digest in self._held

    def save(self, name: Name, data: UInt8) -> bool:
        """Keep a copy of a block's bytes; False where it does not fit at all."""
        if data.nbytes > self.limit:
            return False
        buffer = None
        while self._nbytes + data.nbytes > self.limit:
            _, left = self._held.popitem(last=False)
            self._nbytes -= left.data.nbytes
            buffer = left.data  # its pages are there already
        if buffer is None or buffer.nbytes != data.nbytes:
            buffer = data.copy()
        else:
            buffer[:] = data
        self._held[name[0]] = _Held(name, buffer)
        self._nbytes += buffer.nbytes
        self._saved += 1
        return True

    def find(self, name: Name) -> UInt8 | None:
        """The bytes of a block, until the next `save`; None without it."""
        held = self._held.get(name[0])
        if held is None or held.name != name:
            return None
        self._held.move_to_end(name[0])
        return held.data

    def figures(self, blocks: int, nbytes: int, seconds: float) -> TierFigures:
        """What it holds, and counters; with those of what was brought back."""
        return TierFigures(
            held_bytes=self._nbytes,
            saved_blocks=self._saved,
            loaded_blocks=blocks,
            loaded_bytes=nbytes,
            load_seconds=seconds,
        )
