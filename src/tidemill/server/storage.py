"""The database of a running server.

It is opened when something first needs it, after the server is ready: until then nothing of
SQLAlchemy is imported. What keeps facts in it registers here, and is told once it is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tidemill.base.errors import TidemillError
from tidemill.base.log import get_logger
from tidemill.metrics.database import DatabaseMetrics

if TYPE_CHECKING:
    from tidemill.store.database import Database
    from tidemill.store.location import Location

log = get_logger(__name__)

OPEN_SECONDS = 10.0
"""How long a request that needs the database waits until it is open."""

RETRY_SECONDS = 5.0
"""Between attempts to open one that does not answer."""

OnOpen = Callable[["Database"], Awaitable[None]]


class Storage:
    """See the module docstring.

    Args:
        location: where the database lies.
        metrics: whether it answers.

    Attributes:
        location: as given.
        on_open: awaited in order when the database is open for the first time; an exception is
            logged and does not keep the others from it.
        on_close: awaited in reverse order before it is closed.
    """

    def __init__(self, location: Location, metrics: DatabaseMetrics) -> None:
        self.location = location
        self.on_open: list[OnOpen] = []
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        self._metrics = metrics
        self._database: Database | None = None
        self._opening: asyncio.Task[Database] | None = None
        self._wrong: TidemillError | None = None

    @property
    def database(self) -> Database | None:
        """The open database; None: nothing has needed it yet, or it cannot be opened."""
        return self._database

    def start(self) -> None:
        """Begin to open it, once there is a server: after readiness."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())

    async def opened(self, patience: float = OPEN_SECONDS) -> Database:
        """The database, opened where nothing has needed it before.

        Args:
            patience: seconds to wait for it.

        Raises:
            DatabaseUnavailable: it does not answer.
            TidemillError: kind CONFIG: it cannot be used.
        """
        if self._database is not None:
            return self._database
        self.start()
        assert self._opening is not None
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(self._opening)
        except TimeoutError:
            from tidemill.store.unavailable import DatabaseUnavailable

            if self._wrong is not None:
                raise self._wrong from None
            raise DatabaseUnavailable(self.location.shown, "it is not open yet") from None

    async def _open(self) -> Database:
        # Imports of a tenth of a second; in a thread the event loop goes on.
        kind = await asyncio.to_thread(_database_class)
        database = kind(self.location)
        self._metrics.watch(lambda: database.available, lambda: database.outages)
        said = ""
        while True:
            try:
                await database.open()
                break
            except TidemillError as error:
                self._wrong = error
                if error.message != said:
                    log.error("%s", error.message)
                said = error.message
                await asyncio.sleep(RETRY_SECONDS)
        self._wrong = None
        self._database = database
        log.info("the database %s is open", self.location.shown)
        for callback in self.on_open:
            try:
                await callback(database)
            except TidemillError as error:
                log.error("what needs the database could not begin: %s", error.message)
            except Exception:
                log.exception("what needs the database could not begin")
        return database

    async def close(self) -> None:
        """Close it; what its users still have to write they write before."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for end in reversed(self.on_close):
            try:
                await end()
            except TidemillError as error:
                log.error("what needed the database could not end: %s", error.message)
            except Exception:
                log.exception("what needed the database could not end")
        if self._database is not None:
            await self._database.close()
            self._database = None


def _database_class() -> type[Database]:
    from tidemill.store.database import Database

    return Database
