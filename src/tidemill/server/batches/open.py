"""The batches of a running server, opened when something first asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.server.batches.owners import owner_of
from tidemill.server.context import ServerContext
from tidemill.server.errors import reject

if TYPE_CHECKING:
    from tidemill.server.batches.service import BatchService
    from tidemill.store.database import Database


async def batch_service(context: ServerContext) -> BatchService:
    """The service; opens the database where nothing has needed it before.

    Raises:
        Rejection: 501: the server has no database.
        DatabaseUnavailable: it does not answer.
    """
    if context.storage is None:
        raise reject(
            501,
            "files and batches are kept in a database, and this server has none; start it without "
            "--database none",
            code="no_database",
        )
    await context.storage.opened()
    return context.kept(_make)


def _make(context: ServerContext) -> BatchService:
    from tidemill.server.batches.service import BatchService

    storage, app = context.storage, context.app
    assert storage is not None and storage.database is not None and app is not None
    service = BatchService(
        storage.database,
        app,
        lambda stored: owner_of(stored, context.keys),
        busy=lambda: context.shared.choices.total > 0,
    )
    storage.on_close.append(service.close)
    return service


def go_on(context: ServerContext) -> None:
    """Once the database is open, go on with the batches that were left."""

    async def look(database: Database) -> None:
        from tidemill.store.batches import any_unfinished

        # Another server of a shared database may die any time: its batches are taken over.
        if database.dialect == "postgresql" or await database.read(any_unfinished):
            context.kept(_make).start()

    if context.storage is not None:
        context.storage.on_open.append(look)
