"""Memory of compiled grammars that requests hold, bounded and shared by tenants."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque

from tidemill.base.errors import ErrorKind, TidemillError

MAX_LIVE_BYTES = 512 * 2**20
"""Of the grammars of all requests in flight together."""

# A choice's own copy of a matcher: at most a 75th of what the copies share, and some more.
CHOICE_SHARE, CHOICE_BYTES = 64, 16 * 2**10


def choices_bytes(shared: int, choices: int) -> int:
    """What the choices of a request take beside what they share."""
    return choices * (shared // CHOICE_SHARE + CHOICE_BYTES)


class LiveGrammars:
    """Who holds how much. Safe to call from several threads.

    Beyond the bound a tenant is refused once it holds more than an even share of it, so that none
    keeps the others out.
    """

    def __init__(self, most: int = MAX_LIVE_BYTES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        # Filled by finalizers, which run anywhere, within the lock too.
        self._released: deque[tuple[str, int]] = deque()

    def hold(self, holder: object, tenant: str, size: int) -> None:
        """Count bytes for a tenant while `holder` lives.

        Raises:
            TidemillError: OVERLOADED beyond the bound.
        """
        with self._lock:
            self._settle()
            total = self._held.total()
            share = self._most // len({*self._held, tenant})
            if total + size > self._most and self._held[tenant] + size > share:
                raise TidemillError(
                    ErrorKind.OVERLOADED,
                    f"the grammars of requests in flight take {total >> 20} MiB of "
                    f"{self._most >> 20}; try again when some have ended, or use smaller ones",
                    retryable=True,
                )
            self._held[tenant] += size
        weakref.finalize(holder, self._released.append, (tenant, size)).atexit = False

    @property
    def total(self) -> int:
        """Bytes held."""
        with self._lock:
            self._settle()
            return self._held.total()

    def _settle(self) -> None:
        while self._released:
            tenant, size = self._released.popleft()
            self._held[tenant] -= size
            if not self._held[tenant]:
                del self._held[tenant]
