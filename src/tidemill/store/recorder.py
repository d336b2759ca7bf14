"""Takes the records of requests: into the spool at once, and from there into the database.

`add` neither waits nor raises. A task follows, in transactions that count a batch of records and
move the spool's position past it, so that whatever is killed or gone, each record counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError
from tidemill.base.log import get_logger
from tidemill.store.spool import Batch, Position, Spool, left_spools, take_spool
from tidemill.telemetry.record import Outcome, RequestRecord

if TYPE_CHECKING:
    from tidemill.store.database import Database

log = get_logger(__name__)

BATCH = 512
"""Records of one transaction, most of whose cost is per transaction."""

SLICE = 32
"""Records that are prepared for it without yielding to the event loop."""

FLUSH_SECONDS = 2.0
"""Records are in the database so long after their requests ended, while it answers."""

SYNC_SECONDS = 1.0
"""What a power failure may lose."""

LEFT_SECONDS = 60.0
"""How often the spools of servers that have ended are looked for."""

CLOSE_SECONDS = 3.0
"""How long the end of a server waits for its last records to be written."""

MAX_REFUSALS = 256
"""Kinds of refusals that are told apart within one flush."""

_TOGETHER = (401, 429)
"""Statuses of refusals of which those of one client, route and reason are one record."""

RETRY_SECONDS = (0.2, 5.0)
_SAID_SECONDS = 60.0


class Gauges(Protocol):
    """What is exported.

    Attributes:
        lost: counts records that are in neither spool nor database.
    """

    def lost(self, count: int) -> None:
        """So many more were lost."""


class Recorder:
    """Of one server.

    Args:
        folder: of the spools for this database.
        database: opens it, where that has not been done; it raises TidemillError.

    Attributes:
        gauges: told of losses.
        spool: where records wait; None until the first one.
    """

    def __init__(self, folder: Path, database: Callable[[], Awaitable[Database]]) -> None:
        self._folder = folder
        self._open_database = database
        self.gauges: Gauges | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self.spool: Spool | None = None
        self._wrong: TidemillError | None = None
        self._counted = 0  # of spool.appended
        self._done: tuple[Position, int] | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._said_at = 0.0
        self._refused: dict[tuple[str, ...], tuple[RequestRecord, int]] = {}
        self._closing = False

    @property
    def behind(self) -> int:
        """Records of this process that are not in the database yet."""
        return 0 if self.spool is None else self.spool.appended - self._counted

    def add(self, record: RequestRecord) -> None:
        """Take a record."""
        if record.status in _TOGETHER:
            self._hold(record)
        else:
            self._append(record)
        if self._timer is None and not self._closing:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FLUSH_SECONDS, self._due)
            if self._task is None:
                self._task = loop.create_task(self._run())

    def _append(self, record: RequestRecord) -> None:
        spool = self.spool or self._take()
        if spool is None or not spool.append(self._encode(record)):
            self._lose()

    def _hold(self, record: RequestRecord) -> None:
        """Keep a refusal until the next flush, with others of its kind: whoever sends requests
        that cannot succeed, as fast as it can, must not fill the spool and the database."""
        kind = (record.key, record.client, record.route, record.code, record.model)
        if kind not in self._refused and len(self._refused) >= MAX_REFUSALS:
            kind = ("", "", "", record.code, "")
            record = RequestRecord("", record.at, code=record.code, status=record.status)
            record = msgspec.structs.replace(record, outcome=Outcome.REFUSED)
        first, count = self._refused.get(kind, (record, 0))
        self._refused[kind] = first, count + 1

    def _release(self) -> None:
        for first, count in self._refused.values():
            self._append(msgspec.structs.replace(first, repeats=count))
        self._refused.clear()

    def _take(self) -> Spool | None:
        if self._wrong is None and not self._closing:
            try:
                self.spool = take_spool(self._folder)
            except TidemillError as error:
                self._wrong = error
                log.error("requests are not recorded: %s", error.message)
        return self.spool

    def _lose(self) -> None:
        if self.gauges is not None:
            self.gauges.lost(1)
        now = monotonic()
        if self.spool is not None and now - self._said_at > _SAID_SECONDS:
            self._said_at = now
            log.error(
                "the spool is full, and the database takes nothing: requests are answered and not "
                "recorded (%d so far)",
                self.spool.lost,
            )

    def _due(self) -> None:
        self._timer = None
        self._release()
        self._wake.set()

    # -- into the database -------------------------------------------------------------------

    async def _run(self) -> None:
        """Write what is spooled whenever something is, and look after spools that were left."""
        delay, looked, synced = RETRY_SECONDS[0], 0.0, 0.0
        while not self._closing:
            await self._wake.wait()
            self._wake.clear()
            spool, now = self.spool, monotonic()
            if spool is None:
                continue
            if now - synced >= SYNC_SECONDS:
                synced = now
                await asyncio.to_thread(_keep_up, spool)
            try:
                database = await self._open_database()
                await self._write_all(database, spool)
                if now - looked >= LEFT_SECONDS:
                    looked = now
                    await drain_left(self._folder, database)
                delay = RETRY_SECONDS[0]
            except TidemillError:
                # Said by whoever opens it. The records wait.
                self._done = None
                await asyncio.sleep(delay)
                delay = min(2 * delay, RETRY_SECONDS[1])
                self._wake.set()
            except Exception:
                log.exception("records of requests cannot be written to the database")
                self._done = None
                await asyncio.sleep(RETRY_SECONDS[1])
                self._wake.set()

    async def _write_all(self, database: Database, spool: Spool) -> None:
        goal, end = spool.appended, spool.written
        self._done = await write_spool(database, spool, self._done)
        if self._done[0] < end:
            self._miss(spool, goal - self._counted)
        self._counted = max(self._counted, goal)

    def _miss(self, spool: Spool, count: int) -> None:
        """Records were appended and are not there: lost, and said, but those that follow count."""
        log.error(
            "spool %s: %d records that were written are not found: its files were removed or "
            "changed; they are not counted",
            *(spool.folder, count),
        )
        spool.abandon()
        spool.lose(count)
        if self.gauges is not None:
            self.gauges.lost(count)

    async def flush(self) -> None:
        """Write all that has been recorded so far.

        Raises:
            TidemillError: the database does not answer.
        """
        self._release()
        if self.spool is not None:
            await self._write_all(await self._open_database(), self.spool)

    async def close(self) -> None:
        """Write the last records, where the database takes them now, and release the spool."""
        if self._timer is not None:
            self._timer.cancel()
        self._release()
        self._closing = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.spool is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                self._done = None
                await self.flush()
                await self._seal(self.spool.id)
        except (TidemillError, TimeoutError):
            log.warning("%d records of requests wait in the spool for the next start", self.behind)
        finally:
            self.spool.close()
            self.spool = None

    async def _seal(self, chain: str) -> None:
        from tidemill.store.audit import seal

        database = await self._open_database()
        await database.write(lambda connection: seal(connection, chain))


def _keep_up(spool: Spool) -> None:
    spool.prepare()
    spool.sync()


async def write_spool(
    database: Database, spool: Spool, done: tuple[Position, int] | None = None
) -> tuple[Position, int]:
    """Count everything that is in a spool.

    Args:
        database: open.
        spool: of this process.
        done: what the database has counted, as returned before; None: it is asked.

    Returns:
        The spool's position and losses that have been counted.

    Raises:
        TidemillError: the database does not answer.
    """
    from tidemill.store.count import Tally, count, position_of

    while True:
        if done is None:
            done = await database.read(lambda connection: position_of(connection, spool.id))
        position, lost = done
        batch: Batch = spool.read(position, BATCH)
        if batch.end == position and batch.lost <= lost:
            return done
        tally = Tally()
        for start in range(0, len(batch.records), SLICE):
            tally.add(batch.records[start : start + SLICE])
            await asyncio.sleep(0)
        if tally.unreadable or batch.damaged:
            log.error(
                "spool %s: %d records cannot be read, and parts of %d files",
                *(spool.id, tally.unreadable, batch.damaged),
            )
        if not await database.write(partial(count, spool=spool.id, batch=batch, tally=tally)):
            done = None  # somebody else has counted it
            continue
        done = batch.end, batch.lost
        spool.discard(batch.end)
        await asyncio.sleep(0)


async def drain_left(folder: Path, database: Database) -> int:
    """Count what servers that have ended left in their spools; returns how many spools there were.

    Raises:
        TidemillError: the database does not answer.
    """
    found = 0
    for spool in left_spools(folder):
        await write_spool(database, spool)
        found += 1
    return found
