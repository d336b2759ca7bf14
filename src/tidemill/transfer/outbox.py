"""Outbox: copies of blocks that another engine has asked for, until they are sent.

A copy is on a lease: whoever asked for it and does not take it, because the connection is lost or
slow, loses it. So what is held is bounded in bytes and in time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.transfer.arena import AVAILABLE, Arena

_log = get_logger(__name__)

LEASE_SECONDS = 10.0
OUTBOX_BYTES = 256 * 2**20
SPARE_BUFFERS = 8

Buffer = bytearray | memoryview


@dataclass(slots=True)
class _Place:
    """Of a block that is asked for: its copy, once it is there; `ended`: it will not come."""

    until: float
    wanted: int = 1
    data: Buffer | None = None
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
        self._free: list[Buffer] = []  # their pages are there already
        self._users: dict[int, int] = {}  # of a copy, by its id: its place, and who sends it
        self._arena: Arena | None = None
        self._slots: dict[int, int] = {}  # by the id of its memory

    def share(self) -> Arena | None:
        """Memory where copies lie from now on that processes of this machine may read; None: there
        is none on this system."""
        with self._changed:
            if self._arena is None and AVAILABLE:
                try:
                    self._arena = Arena(self._nbytes, self.most)
                except OSError as error:
                    _log.warning("no memory is shared with engines of this machine: %s", error)
                    return None
                self._slots = {id(slot): i for i, slot in enumerate(self._arena.slots)}
                self._free += reversed(self._arena.slots)  # the last is taken next
            return self._arena

    def slot_of(self, buffer: Buffer) -> int | None:
        """Where a copy lies in the shared memory."""
        return self._slots.get(id(buffer))

    def buffer(self) -> Buffer:
        """Memory for a copy, to be given to `put`."""
        with self._changed:
            return self._free.pop() if self._free else bytearray(self._nbytes)

    def give_back(self, buffer: Buffer) -> None:
        """What `buffer` returned is not used."""
        with self._changed:
            self._recycle(buffer)

    def free(self, buffer: Buffer) -> None:
        """What `take` returned is not read any more."""
        with self._changed:
            self._release(buffer)

    @property
    def held_bytes(self) -> int:
        """Of the copies."""
        return self._nbytes * len(self._users)

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
                    place.until = monotonic() + LEASE_SECONDS
        return new

    def wants(self, digest: bytes) -> bool:
        """Somebody still waits for it, and there is room."""
        with self._changed:
            self._forget_old()
            return len(self._users) < self.most and digest in self._places

    def put(self, digest: bytes, data: Buffer | None) -> None:
        """A copy, which is the outbox's from now on; None: there is no such block."""
        with self._changed:
            place = self._places.get(digest)
            if place is None or place.data is not None:
                if data is not None:
                    self._recycle(data)
                return
            place.data, place.ended = data, data is None
            if data is not None:
                self._users[id(data)] = 1
            self._changed.notify_all()

    def take(self, digest: bytes, seconds: float) -> Buffer | None:
        """A copy, for `free`; None where it does not come in time, or at all."""
        until = monotonic() + seconds
        with self._changed:
            while (place := self._places.get(digest)) is not None:
                if place.data is not None or place.ended:
                    data = place.data
                    if data is not None:
                        self._users[id(data)] += 1
                    self._one_less(digest, place)
                    return data
                left = until - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return None

    def drop(self, digests: list[bytes]) -> None:
        """Blocks are not wanted any more by one of those who asked."""
        with self._changed:
            for digest in digests:
                place = self._places.get(digest)
                if place is not None:
                    self._one_less(digest, place)

    def close(self) -> None:
        """Nothing is shared with further processes."""
        if self._arena is not None:
            self._arena.close()

    def _one_less(self, digest: bytes, place: _Place) -> None:
        place.wanted -= 1
        if place.wanted <= 0:
            self._forget(digest)

    def _forget(self, digest: bytes) -> None:
        data = self._places.pop(digest).data
        if data is not None:
            self._release(data)

    def _forget_old(self) -> None:
        now = monotonic()
        for digest in [d for d, place in self._places.items() if place.until < now]:
            self._forget(digest)

    def _release(self, buffer: Buffer) -> None:
        self._users[id(buffer)] -= 1
        if not self._users[id(buffer)]:
            del self._users[id(buffer)]
            self._recycle(buffer)

    def _recycle(self, buffer: Buffer) -> None:
        if id(buffer) in self._slots or len(self._free) < SPARE_BUFFERS:
            self._free.append(buffer)
