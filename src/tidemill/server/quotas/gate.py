"""Requests that arrive before it is known whether the database limits them.

This module imports nothing else of quotas: a server needs it before anything is limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.generation.caller import UNLIMITED, Reservation
from tidemill.server.access.auth import Principal
from tidemill.server.errors import Problem, Rejection

if TYPE_CHECKING:
    from tidemill.server.quotas.quotas import Quotas, RequestQuota
    from tidemill.server.quotas.standing import Standing

WAIT_SECONDS = 10.0
"""How long a request waits for the limits, when a server has just started."""

RETRY_SECONDS = 5


class Gate:
    """Closed until the limits of the database are known.

    Args:
        quotas: what limits requests; it returns None where nothing does.
    """

    def __init__(self, quotas: Callable[[], Quotas | None]) -> None:
        self._quotas = quotas
        self._known = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether the limits are known."""
        return self._known.is_set()

    def open(self) -> None:
        """The limits are known."""
        self._known.set()

    def begin(self, principal: Principal) -> RequestQuota | PendingQuota | None:
        """What one request of a principal is charged to; None where nothing limits it."""
        if not self._known.is_set():
            return PendingQuota(self, principal)
        return self.request(principal)

    def request(self, principal: Principal) -> RequestQuota | None:
        """The same, once it is open."""
        quotas = self._quotas()
        return None if quotas is None else quotas.request(principal)

    async def wait(self) -> None:
        """Wait until it is open.

        Raises:
            Rejection: 503, the database does not answer.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._known.wait()
        except TimeoutError:
            message = (
                "the database of limits has not answered since this server started, and what this "
                f"request may use is not known; try again in {RETRY_SECONDS} s"
            )
            headers = {"Retry-After": str(RETRY_SECONDS)}
            raise Rejection(
                Problem(503, "server_error", message, None, "database_unavailable", headers)
            ) from None


class PendingQuota:
    """A `generation.caller.Quota` that waits for the limits first."""

    def __init__(self, gate: Gate, principal: Principal) -> None:
        self._gate = gate
        self._principal = principal
        self._found: RequestQuota | None = None

    async def reserve(self, model: str, prompt: int, expected: int, most: int) -> Reservation:
        """See `Quota`."""
        if self._found is None:
            await self._gate.wait()
            self._found = self._gate.request(self._principal)
        if self._found is None:
            return UNLIMITED
        return await self._found.reserve(model, prompt, expected, most)

    def standing(self) -> Standing | None:
        """See `RequestQuota`; None while nothing is known."""
        return None if self._found is None else self._found.standing()


def may_limit(path: Path | None) -> bool:
    """Whether a database can hold limits: False where it is a file without any.

    Args:
        path: of a database that is a file; None: of another.
    """
    if path is None:
        return True
    if not path.exists():
        return False
    import sqlite3

    try:
        address = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=5)) as connection:
            return connection.execute("SELECT 1 FROM limits LIMIT 1").fetchone() is not None
    except sqlite3.OperationalError as error:
        return "no such table" not in str(error)
