"""The quotas of a running server: made when there is a limit, and kept in its database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults, Limits
from tidemill.metrics.quotas import QuotaMetrics
from tidemill.server.quotas.account import Subject
from tidemill.server.quotas.bank import StoreBank
from tidemill.server.quotas.quotas import Quotas, read_clocks
from tidemill.server.quotas.treasury import Treasury, Watcher
from tidemill.server.storage import Storage

if TYPE_CHECKING:
    from tidemill.store.database import Database


class QuotaService:
    """See the module docstring.

    Args:
        defaults: limits of each level.
        prices: of models.
        metrics: counts refusals.
        storage: the database; None: this server counts in memory.
        made: called with the quotas once there is a limit.

    Attributes:
        quotas: None: there is no limit.
    """

    def __init__(
        self,
        defaults: Defaults,
        prices: Prices,
        metrics: QuotaMetrics,
        storage: Storage | None,
        made: Callable[[Quotas], None],
    ) -> None:
        self.quotas: Quotas | None = None
        self._defaults = defaults
        self._prices = prices
        self._metrics = metrics
        self._storage = storage
        self._made = made
        self._watching: asyncio.Task[None] | None = None

    def make(self) -> Quotas:
        """The quotas, with the limits that are known."""
        if self.quotas is None:
            treasury = None
            if self._storage is not None:
                treasury = Treasury(StoreBank(self._storage), read_clocks)
            self.quotas = Quotas(self._defaults, self._prices, self._metrics, treasury=treasury)
            self._made(self.quotas)
        return self.quotas

    async def watch(self, database: Database) -> None:
        """Read the limits of the open database, and again whenever they change."""
        assert self._storage is not None
        watcher = Watcher(StoreBank(self._storage), self._follow)
        self._watching = asyncio.ensure_future(watcher.run())
        await watcher.look()
        database.on_available.append(self._retry)

    def _retry(self) -> None:
        if self.quotas is not None and self.quotas.treasury is not None:
            self.quotas.treasury.retry()

    def _follow(self, limits: dict[Subject, Limits]) -> None:
        if limits or self.quotas is not None:
            self.make().set_limits(limits)

    async def close(self) -> None:
        """Return to the database what was drawn; after the last request has ended."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self.quotas is not None and self.quotas.treasury is not None:
            await self.quotas.treasury.close()
