"""What becomes of the records of requests: usage and audit, where the server has a database."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.clock import wall
from tidemill.base.errors import TidemillError
from tidemill.base.log import get_logger
from tidemill.contract.prices import Prices
from tidemill.metrics.usage import UsageMetrics
from tidemill.server.context import ServerContext
from tidemill.server.recording import Recording
from tidemill.store.recorder import Recorder
from tidemill.store.spool import spool_folder

if TYPE_CHECKING:
    from tidemill.store.database import Database

log = get_logger(__name__)

PRUNE_SECONDS = 3600.0
"""How often old rows of the audit log are removed."""

PAUSE_SECONDS = 0.2
"""Between two transactions of it."""


def _warn_unwritable(folder: Path) -> None:
    """Say now, and not with the first request, that nothing could be recorded. It is made with the
    first record."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        log.error(
            "requests will be answered and not counted: %s cannot be written; give TIDEMILL_HOME "
            "another folder, or --database none",
            there,
        )


def keep_records(context: ServerContext, home: Path, prices: Prices) -> Recorder:
    """Record the requests of a server from now on.

    Args:
        context: with its database.
        home: ``TIDEMILL_HOME``: for the spool and the server's secret.
        prices: what tokens cost.
    """
    storage = context.storage
    assert storage is not None
    spool = spool_folder(home, storage.location)
    _warn_unwritable(spool)
    recorder = Recorder(spool, storage.opened)
    recorder.gauges = UsageMetrics(context.metrics.registry, lambda: recorder.behind)

    async def begin(database: Database) -> None:
        await asyncio.to_thread(_use_key, home)
        if prices:
            from tidemill.store.settings import put
            from tidemill.store.usage import CURRENCY

            await database.write(lambda connection: put(connection, CURRENCY, prices.currency))

    pruning: list[asyncio.Task[None]] = []

    async def opened(database: Database) -> None:
        pruning.append(asyncio.ensure_future(_prune_old(database)))

    async def closed() -> None:
        for task in pruning:
            task.cancel()
        await asyncio.gather(*pruning, return_exceptions=True)

    storage.on_open.insert(0, begin)
    storage.on_open.append(opened)
    storage.on_close.append(closed)
    context.recording = Recording(recorder.add, prices)
    context.recorder = recorder
    return recorder


async def _prune_old(database: Database) -> None:
    """Remove rows of the audit log that are older than administrators want them kept."""
    from tidemill.store.audit import retention
    from tidemill.store.prune import prune_requests

    while True:
        try:
            seconds = await database.read(retention)
            if seconds is not None:
                before = int((wall() - seconds) * 1000)
                work = partial(prune_requests, actor="server", before=before)
                while (done := await database.write(work)).removed:
                    await asyncio.sleep(PAUSE_SECONDS)
                for fault in done.faults:
                    log.error("old rows of the audit log stay, for it is broken: %s", fault)
        except Exception as error:
            log.warning("old rows of the audit log could not be removed, again later: %s", error)
        await asyncio.sleep(PRUNE_SECONDS)


def _use_key(home: Path) -> None:
    from tidemill.store.audit import seal_with
    from tidemill.store.sealing import open_sealer

    try:
        seal_with(open_sealer(home))
    except TidemillError as error:
        log.error("the audit log is written without seals: %s", error.message)
