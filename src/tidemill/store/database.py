"""A database: transactions, retries, and whether it answers.

SQLAlchemy Core is written for threads. A transaction here is a plain function of a `Connection`,
run in a greenlet: where it would block, the event loop goes on. That is what SQLAlchemy's
AsyncEngine does too, whose import would cost the ORM's memory (7 MiB).
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.util import greenlet_spawn

from tidemill.base.clock import monotonic, wall
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger
from tidemill.store.faults import Fault, cause_of, fault_of
from tidemill.store.location import Location
from tidemill.store.migrations.migrate import is_current, migrate
from tidemill.store.schema import HEAD
from tidemill.store.unavailable import DatabaseUnavailable

log = get_logger(__name__)

T = TypeVar("T")
Work = Callable[[Connection], T]
"""A transaction. It may run several times, and where the connection breaks while it commits, a run
that is repeated may have counted already: one that is given patience must be idempotent."""

BUSY_SECONDS = 10.0
"""How long a transaction of SQLite waits for another one; then the database does not answer, and
nothing of it is executed later."""

BUSY_POLL_SECONDS = 1.0
"""How long SQLite itself waits; the transaction is begun again until `BUSY_SECONDS` are over."""

SETTLED_SECONDS = 2.0
"""A file that was put in the place of another is whole once nobody has written to it so long."""

CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 60.0
BACKOFF_SECONDS = (0.05, 5.0)
_CONFLICTS = 8


class Database:
    """A database that is or will be open.

    Attributes:
        location: where it lies.
        available: False from the first transaction that finds it gone until it answers again.
        outages: how often it went.
        on_available: called in the event loop whenever it answers again.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.available = False
        self.outages = 0
        self.on_available: list[Callable[[], None]] = []
        self._cause = "it is not open"
        self._engine: Engine | None = None
        self._file: tuple[int, int] | None = None
        # SQLite has one writer: the others of this process wait here instead of polling the file.
        self._writing = asyncio.Lock()
        self._returned = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return "sqlite" if self.location.path is not None else "postgresql"

    async def open(self, patience: float = 0.0, *, writable: bool = False) -> None:
        """Connect, and migrate to the newest revision where needed.

        Args:
            patience: seconds to try again while the database does not answer.
            writable: one that only answers readers, since another program holds it, does not
                answer.

        Raises:
            DatabaseUnavailable: it does not answer.
            TidemillError: kind CONFIG: it is not Tidemill's, or newer than this program.
        """
        started = monotonic()
        delay = BACKOFF_SECONDS[0]
        while True:
            try:
                await self._open(writable=writable)
                return
            except Exception as error:
                fault = fault_of(error)
                if fault is Fault.OWN:
                    raise self._own(error) from error
                self._cause = cause_of(error)
                # Two that open a new file at once get in each other's way for a moment.
                allowed = max(patience, BUSY_SECONDS if fault is Fault.CONFLICT else 0)
                if monotonic() + delay > started + allowed:
                    raise self._unavailable() from None
            await asyncio.sleep(delay)
            delay = min(2 * delay, BACKOFF_SECONDS[1])

    async def _open(self, *, writable: bool) -> None:
        await self._dispose()
        path = self.location.path
        if path is not None:
            if self._file is None:
                await asyncio.to_thread(_make_private, path)
            elif self._file != _identity(path):
                await asyncio.to_thread(_check_restored, path)
            self._file = _identity(path)
        self._engine = _sqlite_engine(self.location) if path else _server_engine(self.location)
        engine = self._engine
        if not await greenlet_spawn(is_current, engine):
            await greenlet_spawn(migrate, engine)
        if writable:
            await greenlet_spawn(_in_transaction, engine, lambda connection: None, True)
        self.available = True
        self._returned.set()

    async def migrate(self, revision: str = HEAD) -> None:
        """Bring the open database to an older revision, or back to the newest; "base": no tables.

        Raises:
            TidemillError: kind CONFIG: see `migrations.migrate`.
        """
        assert self._engine is not None, "the database is not open"
        await greenlet_spawn(migrate, self._engine, revision)

    async def read(self, work: Work[T], patience: float = 0.0) -> T:
        """Run a transaction that changes nothing.

        Raises:
            DatabaseUnavailable: the database did not answer within `patience` seconds.
            sqlalchemy.exc.SQLAlchemyError: of a statement.
        """
        return await self._run(work, patience, writing=False)

    async def write(self, work: Work[T], patience: float = 0.0) -> T:
        """Run a transaction; it has been committed when this returns. A caller that is cancelled
        does not end it.

        Raises:
            DatabaseUnavailable, sqlalchemy.exc.SQLAlchemyError: as of `read`.
        """
        return await self._run(work, patience, writing=True)

    async def _run(self, work: Work[T], patience: float, *, writing: bool) -> T:
        started = monotonic()
        deadline = started + patience
        conflicts = 0
        while True:
            if not self.available:
                await self._wait(deadline - monotonic())
                started, conflicts = monotonic(), 0
            until = max(deadline, started + BUSY_SECONDS)
            try:
                return await asyncio.shield(
                    asyncio.ensure_future(self._transaction(work, until, writing=writing))
                )
            except Exception as error:
                fault = fault_of(error)
                if fault is Fault.OWN:
                    raise
                if fault is Fault.CONFLICT and self._again(started, conflicts):
                    conflicts += 1
                    await asyncio.sleep(min(0.005 * 2**conflicts, 1.5))
                    continue
                self._lost(error)
                if monotonic() >= deadline:
                    raise self._unavailable() from None

    def _again(self, started: float, conflicts: int) -> bool:
        """Whether a transaction that met another one is run again. SQLite's may meet one that
        stays, of another program."""
        if self.location.path is not None:
            return monotonic() < started + BUSY_SECONDS
        return conflicts < _CONFLICTS

    async def _wait(self, seconds: float) -> None:
        if seconds <= 0:
            raise self._unavailable()
        limit = None if math.isinf(seconds) else seconds
        try:
            async with asyncio.timeout(limit):
                await self._returned.wait()
        except TimeoutError:
            raise self._unavailable() from None

    async def _transaction(self, work: Work[T], until: float, *, writing: bool) -> T:
        engine = self._engine
        assert engine is not None
        path = self.location.path
        if path is None:
            return await greenlet_spawn(_in_transaction, engine, work, writing)
        # Who writes to a file that was removed or replaced writes to nothing, without an error.
        if _identity(path) != self._file:
            raise FileNotFoundError(f"{path.name} was removed or replaced")
        if not writing:
            return await greenlet_spawn(_in_transaction, engine, work, writing)
        await self._turn(until - monotonic())
        try:
            return await greenlet_spawn(_in_transaction, engine, work, writing)
        finally:
            self._writing.release()

    async def _turn(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self._writing.acquire()
        except TimeoutError:
            cause = self._cause if not self.available else "its other transactions take too long"
            raise DatabaseUnavailable(self.location.shown, cause) from None

    def _lost(self, error: Exception) -> None:
        self._cause = cause_of(error)
        if self.available:
            self.available = False
            self.outages += 1
            self._returned.clear()
            log.error("the database %s does not answer: %s", self.location.shown, self._cause)
        if self._probing is None or self._probing.done():
            self._probing = asyncio.ensure_future(self._probe())

    async def _probe(self) -> None:
        """Wait for the database to answer again."""
        lost = monotonic()
        said = ""
        while True:
            try:
                await self.open(patience=math.inf, writable=True)
                break
            except TidemillError as error:
                # A file may be put back in parts, or another one instead.
                self._cause = error.message
                if error.message != said:
                    log.error(
                        "the database %s cannot be used: %s", self.location.shown, self._cause
                    )
                said = error.message
            await asyncio.sleep(BACKOFF_SECONDS[1])
        seconds = monotonic() - lost
        log.warning("the database %s answers again after %.1f s", self.location.shown, seconds)
        for callback in list(self.on_available):
            callback()

    def _unavailable(self) -> DatabaseUnavailable:
        return DatabaseUnavailable(self.location.shown, self._cause)

    def _own(self, error: Exception) -> TidemillError:
        if isinstance(error, TidemillError):
            return error
        return TidemillError(
            ErrorKind.CONFIG,
            f"the database {self.location.shown} cannot be opened: {cause_of(error)}",
            param="database",
        )

    async def _dispose(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await greenlet_spawn(engine.dispose)

    async def close(self) -> None:
        """Close all connections; transactions that still run are waited for."""
        self.available = False
        self._returned.clear()
        self._cause = "it is closed"
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        async with self._writing:
            await self._dispose()
        self._file = None


def _in_transaction(engine: Engine, work: Work[T], writing: bool) -> T:
    with engine.connect().execution_options(writing=writing) as connection, connection.begin():
        return work(connection)


def _make_private(path: Path) -> None:
    """Make the file, readable by its owner alone; SQLite gives its other files the same mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.close(descriptor)


def _check_restored(path: Path) -> None:
    """Check that a file that takes the place of one that was open is there, and whole.

    Who removed the one before may be about to put a copy there: no new one is made.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path.name} was removed: put it back, or start the server again for a new one"
        ) from None
    if not status.st_size or wall() - status.st_mtime < SETTLED_SECONDS:
        raise BlockingIOError(f"{path.name} is being written")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _sqlite_engine(location: Location) -> Engine:
    # One connection writes, one reads; each has a thread.
    engine = create_engine(
        location.url,
        pool_size=2,
        max_overflow=0,
        pool_timeout=60,
        connect_args={"timeout": BUSY_POLL_SECONDS},
    )

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        # Transactions are begun by `begun` alone; the driver would begin them at the first change.
        connection.isolation_level = None
        cursor = connection.cursor()
        for setting in (
            "journal_mode=WAL",
            # What was committed survives kill -9; the last moments may not survive a power failure.
            "synchronous=NORMAL",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        # A transaction that reads first and writes then could fail with "busy" without waiting.
        writing = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _server_engine(location: Location) -> Engine:
    try:
        return create_engine(
            location.url,
            pool_size=4,
            max_overflow=4,
            pool_timeout=60,
            connect_args={"timeout": CONNECT_SECONDS, "command_timeout": COMMAND_SECONDS},
        )
    except ModuleNotFoundError as error:
        raise TidemillError(
            ErrorKind.CONFIG,
            "--database postgresql://... needs the extra 'postgres': "
            "pip install 'tidemill[postgres]'",
            param="database",
        ) from error
