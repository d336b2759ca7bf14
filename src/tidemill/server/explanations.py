"""Explanations that are kept in the database: made and written in the background."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemill.base.clock import monotonic, wall
from tidemill.base.log import get_logger, summary
from tidemill.server.context import ServerContext
from tidemill.telemetry.recent import Recent, Story

if TYPE_CHECKING:
    from tidemill.store.database import Database

log = get_logger(__name__)

WRITE_SECONDS = 2.0
"""Between two transactions. What an engine tells of a request that its client left comes after the
request's end, and within this time."""

MOST_WAITING = 4096
"""Stories that wait while the database does not answer; beyond, the oldest are not kept."""

AT_ONCE = 256

PRUNE_SECONDS = 3600.0


class Keeper:
    """Writes the explanations of requests that have ended.

    Args:
        recent: the latest requests.
        currency: of prices.
        begin: the database will be needed.

    Attributes:
        waiting: requests that have ended and are not written yet, at most MOST_WAITING.
        lost: requests whose explanations are not kept, because too many waited.
    """

    def __init__(self, recent: Recent, currency: str, begin: Callable[[], None]) -> None:
        self._recent = recent
        self._currency = currency
        self._begin = begin
        self.waiting: deque[Story] = deque()
        self.lost = 0
        recent.on_end.append(self._ended)

    def _ended(self, story: Story) -> None:
        self._begin()
        self.waiting.append(story)
        if len(self.waiting) > MOST_WAITING:
            self.waiting.popleft()
            self.lost += 1

    async def write(self, database: Database) -> None:
        """Write what waits."""
        from tidemill.store.explanations import add

        while self.waiting:
            stories = [*self.waiting][:AT_ONCE]
            rows = await asyncio.to_thread(self._rows, stories, [*self._recent])
            await database.write(partial(add, rows=rows))
            for story in stories:
                # Some may have been given up meanwhile, the oldest first.
                if self.waiting and self.waiting[0] is story:
                    self.waiting.popleft()

    def _rows(self, stories: list[Story], others: list[Story]) -> list[dict[str, Any]]:
        from tidemill.store.explanations import row_of
        from tidemill.telemetry.explain import explanation

        now = monotonic()
        return [row_of(explanation(s, now, others, currency=self._currency)) for s in stories]


def keep_explanations(context: ServerContext, seconds: float) -> None:
    """Keep the explanations of requests in the database, so many seconds; infinite for ever."""
    storage, recent = context.storage, context.recent
    assert storage is not None and recent is not None and context.recording is not None
    keeper = Keeper(recent, context.recording.prices.currency, storage.start)
    tasks: list[asyncio.Task[None]] = []
    databases: list[Database] = []

    async def opened(database: Database) -> None:
        databases.append(database)
        tasks.append(asyncio.ensure_future(_write(keeper, database)))
        if seconds != float("inf"):
            tasks.append(asyncio.ensure_future(_prune(database, seconds)))

    async def closed() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for database in databases:
            await keeper.write(database)

    storage.on_open.append(opened)
    storage.on_close.append(closed)
    context.explanations_kept = True


async def _write(keeper: Keeper, database: Database) -> None:
    lost = 0
    while True:
        await asyncio.sleep(WRITE_SECONDS)
        try:
            await keeper.write(database)
        except Exception as error:
            log.warning("explanations wait: %s", summary(error))
        if keeper.lost > lost:
            log.error("explanations of %d requests are not kept", keeper.lost - lost)
            lost = keeper.lost


async def _prune(database: Database, seconds: float) -> None:
    from tidemill.store.explanations import prune

    while True:
        try:
            before = int((wall() - seconds) * 1000)
            while await database.write(partial(prune, before=before)):
                await asyncio.sleep(0.2)
        except Exception as error:
            log.warning("old explanations stay, for the time being: %s", summary(error))
        await asyncio.sleep(PRUNE_SECONDS)
