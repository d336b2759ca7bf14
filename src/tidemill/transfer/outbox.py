"""Outbox: copies of blocks that another engine has asked for, until they are sent.

A copy is on a lease: whoever asked for it and does not take it, because the connection is lost or
slow, loses it. So what is held is bounded in bytes and in time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from tidemill.base.clock import monotonic

LEASE_SECONDS = 10.0
OUTBOX_BYTES = 256 * 2**20
SPARE_BUFFERS = 8


@dataclass(slots=True)
class _Place:
    """Of a block that is asked for: its copy, once it is there; `ended`: it will not come."""

    until: float
    wanted: int = 1
    shared: bool = False  # several have asked for it
    data: bytearray | None = None
    ended: bool = False


class Outbox:
    """See the module docstring. For any thread.

    Args:
        nbytes: of a block.
    """

    def __init__(self, nbytes: int) -> None:
        self.most = max(2, OUTBOX_BYTES // nbytes)
        self._nbytes = nbytes
        self._places: OrderedDict[bytes, _Place] = OrderedDict()
        self._changed = threading.Condition()
        self._free: list[bytearray] = []  # their pages are there already

    def buffer(self) -> bytearray:
        """Memory for a copy."""
        with self._changed:
            return self._free.pop() if self._free else bytearray(self._nbytes)

    def free(self, buffer: bytearray) -> None:
        """A copy that nobody else has was sent."""
        with self._changed:
            if len(self._free) < SPARE_BUFFERS:
                self._free.append(buffer)

    @property
    def held_bytes(self) -> int:
        """Of the copies."""
        return self._nbytes * sum(place.data is not None for place in self._places.values())

    def expect(self, digests: list[bytes]) -> list[bytes]:
        """Blocks are asked for; those of them that are to be brought."""
        new = []
        with self._changed:
            self._forget_old()
            for digest in digests:
                place = self._places.get(digest)
                if place is None:
                    self._places[digest] = _Place(monotonic() + LEASE_SECONDS)
                    new.append(digest)
                else:
                    place.wanted += 1
                    place.shared = True
                    place.until = monotonic() + LEASE_SECONDS
        return new

    def wants(self, digest: bytes) -> bool:
        """Somebody still waits for it, and there is room."""
        with self._changed:
            self._forget_old()
            full = sum(place.data is not None for place in self._places.values()) >= self.most
            return not full and digest in self._places

    def put(self, digest: bytes, data: bytearray | None) -> None:
        """A copy, which is the outbox's from now on; None: there is no such block."""
        with self._changed:
            place = self._places.get(digest)
            if place is not None:
                place.data, place.ended = data, data is None
                self._changed.notify_all()

    def take(self, digest: bytes, seconds: float) -> tuple[bytearray | None, bool]:
        """A copy, and whether nobody else has it (`free`); None where it does not come in time, or
        at all."""
        until = monotonic() + seconds
        with self._changed:
            while (place := self._places.get(digest)) is not None:
                if place.data is not None or place.ended:
                    place.wanted -= 1
                    if place.wanted <= 0:
                        del self._places[digest]
                    return place.data, not place.shared
                left = until - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return None, False

    def drop(self, digests: list[bytes]) -> None:
        """Blocks are not wanted any more by one of those who asked."""
        with self._changed:
            for digest in digests:
                place = self._places.get(digest)
                if place is not None:
                    place.wanted -= 1
                    if place.wanted <= 0:
                        del self._places[digest]

    def _forget_old(self) -> None:
        now = monotonic()
        for digest in [d for d, place in self._places.items() if place.until < now]:
            del self._places[digest]
