"""What becomes of the records of requests: usage and audit, where the server has a database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

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


def keep_records(context: ServerContext, home: Path, prices: Prices) -> Recorder:
    """Record the requests of a server from now on.

    Args:
        context: with its database.
        home: ``TIDEMILL_HOME``: for the spool and the server's secret.
        prices: what tokens cost.
    """
    storage = context.storage
    assert storage is not None
    recorder = Recorder(spool_folder(home, storage.location), storage.opened)
    recorder.gauges = UsageMetrics(context.metrics.registry, lambda: recorder.behind)

    async def begin(database: Database) -> None:
        await asyncio.to_thread(_use_key, home)
        if prices:
            from tidemill.store.settings import put
            from tidemill.store.usage import CURRENCY

            await database.write(lambda connection: put(connection, CURRENCY, prices.currency))

    storage.on_open.insert(0, begin)
    context.recording = Recording(recorder.add, prices)
    context.recorder = recorder
    return recorder


def _use_key(home: Path) -> None:
    from tidemill.store.audit import seal_with
    from tidemill.store.sealing import open_sealer

    try:
        seal_with(open_sealer(home))
    except TidemillError as error:
        log.error("the audit log is written without seals: %s", error.message)
