"""Limits the memory of the compiled grammars of requests in flight, with fair shares of tenants."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque

from tidemill.base.errors import ErrorKind, TidemillError

MAX_LIVE_BYTES = 512 * 2**20
"""Total memory of the grammars of all requests in flight."""

# A choice's copy of a matcher takes at most a 75th of the shared memory, plus a constant.
CHOICE_SHARE, CHOICE_BYTES = 64, 16 * 2**10


def choices_bytes(shared: int, choices: int) -> int:
    """Memory of a request's choices in addition to their shared memory."""
    return choices * (shared // CHOICE_SHARE + CHOICE_BYTES)


class LiveGrammars:
    """Accounts for grammar memory per tenant. Safe to call from several threads.

    Beyond the limit, a tenant is rejected if it would hold more than an equal share, so that no
    tenant can starve the others.
    """

    def __init__(self, most: int = MAX_LIVE_BYTES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        # Appended to by finalizers, which may run at any time, even while the lock is held.
        self._released: deque[tuple[str, int]] = deque()

    def hold(self, holder: object, tenant: str, size: int) -> None:
        """Charge bytes to a tenant while `holder` is alive.

        Raises:
            TidemillError: OVERLOADED beyond the limit.
        """
        with self._lock:
            self._apply_releases()
            total = self._held.total()
            share = self._most // len({*self._held, tenant})
            if total + size > self._most and self._held[tenant] + size > share:
                raise TidemillError(
                    ErrorKind.OVERLOADED,
                    f"the grammars of requests in flight take {total >> 20} MiB of "
                    f"{self._most >> 20}; retry later, or use smaller grammars",
                    retryable=True,
                )
            self._held[tenant] += size
        weakref.finalize(holder, self._released.append, (tenant, size)).atexit = False

    @property
    def total(self) -> int:
        """Bytes held."""
        with self._lock:
            self._apply_releases()
            return self._held.total()

    def _apply_releases(self) -> None:
        while self._released:
            tenant, size = self._released.popleft()
            self._held[tenant] -= size
            if not self._held[tenant]:
                del self._held[tenant]
