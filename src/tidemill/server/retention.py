"""What clients say and are answered, in the database: its cipher, and how long it is kept."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.clock import wall
from tidemill.base.log import get_logger
from tidemill.server.context import ServerContext

if TYPE_CHECKING:
    from tidemill.store.database import Database

log = get_logger(__name__)

EVERY_SECONDS = 3600.0


def keep_content(context: ServerContext, home: Path | None) -> None:
    """Remove what is older than its team's retention, while the server runs; and keep what clients
    store, encrypted.

    Args:
        context: with its database.
        home: ``TIDEMILL_HOME``, for the server's secret; None: nothing new is kept.

    Raises:
        TidemillError: kind CONFIG: the package or the secret is missing.
    """
    storage = context.storage
    assert storage is not None
    if home is not None:
        from tidemill.store.cipher import Cipher
        from tidemill.store.secret import read_secret

        context.cipher = Cipher(read_secret(home))
    removing: list[asyncio.Task[None]] = []

    async def opened(database: Database) -> None:
        removing.append(asyncio.ensure_future(_remove_old(database)))

    async def closed() -> None:
        for task in removing:
            task.cancel()
        await asyncio.gather(*removing, return_exceptions=True)

    storage.on_open.append(opened)
    storage.on_close.append(closed)


async def _remove_old(database: Database) -> None:
    from tidemill.store import content, files

    while True:
        now = int(wall())
        try:
            count = await database.write(partial(content.expire, now=now))
            count += await database.write(partial(files.remove_old, now=now))
            if count:
                log.info("%d stored responses, conversations and files were old: removed", count)
        except Exception as error:
            log.warning("what is old could not be removed, again later: %s", error)
        await asyncio.sleep(EVERY_SECONDS)
