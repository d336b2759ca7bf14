"""Which blocks an engine has, for those who watch it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tidemill.base.clock import monotonic

MAX_CHANGES = 2**16
"""That are remembered for watchers who come late; who comes later is told all."""


class Announced:
    """Digests of blocks, and their latest changes. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._digests: set[bytes] = set()
        self._changes: deque[tuple[bytes, bool]] = deque(maxlen=MAX_CHANGES)
        self._count = 0  # of all changes ever
        self._waiting = 0

    def note(self, digest: bytes, *, there: bool) -> None:
        """A block is there from now on, or not any more."""
        with self._lock:
            if there == (digest in self._digests):
                return
            (self._digests.add if there else self._digests.discard)(digest)
            self._changes.append((digest, there))
            self._count += 1
            if self._waiting:
                self._lock.notify_all()

    def has(self, digest: bytes) -> bool:
        """Whether a block is there."""
        return digest in self._digests

    def wait(self, digest: bytes, seconds: float, ended: Callable[[], bool]) -> bool:
        """Whether a block is there, now or within so many seconds.

        Args:
            digest: of the block.
            seconds: to wait.
            ended: it will not come any more; looked at again after `wake`.
        """
        until = monotonic() + seconds
        with self._lock:
            self._waiting += 1
            try:
                while digest not in self._digests and not ended():
                    left = until - monotonic()
                    if left <= 0:
                        break
                    self._lock.wait(left)
                return digest in self._digests
            finally:
                self._waiting -= 1

    def wake(self) -> None:
        """What somebody waits for may have ended."""
        with self._lock:
            self._lock.notify_all()

    def since(self, seen: int | None) -> tuple[int, list[tuple[bytes, bool]], bool]:
        """Changes after the first `seen` ones (None: all there is).

        Returns:
            How many changes there were; the new ones; whether they are everything instead.
        """
        with self._lock:
            new = None if seen is None else self._count - seen
            if new is None or new > len(self._changes):
                return self._count, [(digest, True) for digest in self._digests], True
            first = len(self._changes) - new
            return self._count, [self._changes[i] for i in range(first, len(self._changes))], False
