"""The quotas of a running server: made when there is a limit, and kept in its database.

It is made with the server, so it imports the rest of quotas where there is something to limit.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from tidemill.base.errors import TidemillError
from tidemill.base.log import get_logger
from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults, Limits
from tidemill.server.quotas.gate import Gate, may_limit
from tidemill.server.storage import Storage

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tidemill.server.quotas.account import Subject
    from tidemill.server.quotas.quotas import Quotas
    from tidemill.server.quotas.treasury import Watcher
    from tidemill.store.database import Database

log = get_logger(__name__)


class QuotaService:
    """See the module docstring.

    Args:
        defaults: limits of each level.
        prices: of models.
        registry: of metrics.
        storage: the database; None: this server counts in memory.
        outage: seconds for which limits are spent while the database does not answer.

    Attributes:
        gate: what requests pass.
        quotas: None: there is no limit.
    """

    def __init__(
        self,
        defaults: Defaults,
        prices: Prices,
        registry: CollectorRegistry,
        storage: Storage | None,
        outage: float = math.inf,
    ) -> None:
        self.quotas: Quotas | None = None
        self.gate = Gate(lambda: self.quotas)
        self._defaults = defaults
        self._prices = prices
        self._registry = registry
        self._storage = storage
        self._outage = outage
        self._tasks: list[asyncio.Task[None]] = []
        defaults.on_change.append(self._limit)
        self._limit()
        if storage is None:
            self.gate.open()
        else:
            storage.on_open.append(self._opened)
            storage.on_close.append(self._close)

    def limit(self) -> None:
        """Keys of a file may have limits, now or when it is read again."""
        if self.quotas is None:
            from tidemill.metrics.quotas import QuotaMetrics
            from tidemill.server.quotas.bank import StoreBank
            from tidemill.server.quotas.quotas import Quotas, read_clocks
            from tidemill.server.quotas.treasury import Treasury

            treasury = None
            if self._storage is not None:
                treasury = Treasury(StoreBank(self._storage), read_clocks, self._outage)
            metrics = QuotaMetrics(self._registry)
            self.quotas = Quotas(self._defaults, self._prices, metrics, treasury=treasury)

    def start(self) -> None:
        """Open the database where it may hold limits; once the server is ready."""
        if self._storage is not None:
            self._tasks.append(asyncio.ensure_future(self._look(self._storage)))

    def _limit(self) -> None:
        if self._defaults:
            self.limit()

    async def _look(self, storage: Storage) -> None:
        limited = await asyncio.to_thread(may_limit, storage.location.path)
        if limited or self.quotas is not None:
            storage.start()
        if not limited:
            self.gate.open()

    async def _opened(self, database: Database) -> None:
        """Read the limits of the open database, and again whenever they change."""
        from tidemill.server.quotas.bank import StoreBank
        from tidemill.server.quotas.treasury import Watcher

        assert self._storage is not None
        watcher = Watcher(StoreBank(self._storage), self._follow)
        database.on_available.append(self._retry)
        self._tasks.append(asyncio.ensure_future(self._watch(watcher)))

    async def _watch(self, watcher: Watcher) -> None:
        while not self.gate.is_open:
            try:
                await watcher.look()
                self.gate.open()
            except TidemillError as error:
                log.error("the limits of the database are not known: %s", error.message)
                await asyncio.sleep(1)
        await watcher.run()

    def _follow(self, limits: dict[Subject, Limits]) -> None:
        if limits:
            self.limit()
        if self.quotas is not None:
            self.quotas.set_limits(limits)

    def _retry(self) -> None:
        if self.quotas is not None and self.quotas.treasury is not None:
            self.quotas.treasury.retry()

    async def _close(self) -> None:
        """Return to the database what was drawn; after the last request has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.quotas is not None and self.quotas.treasury is not None:
            await self.quotas.treasury.close()
