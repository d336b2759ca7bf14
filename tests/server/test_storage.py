"""The database of a running server is opened when it is needed."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from pathlib import Path

import pytest
from helpers.postgres import running
from prometheus_client import CollectorRegistry, generate_latest

from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.storage import Storage
from tidemill.store.database import Database
from tidemill.store.location import Location, location_of
from tidemill.store.unavailable import DatabaseUnavailable


async def test_what_needs_it_is_told_once_and_in_order(location: Location) -> None:
    registry = CollectorRegistry()
    storage = Storage(location, DatabaseMetrics(registry))
    told: list[tuple[str, bool]] = []

    async def first(database: Database) -> None:
        told.append(("first", database.available))
        raise RuntimeError("and the others are told all the same")

    async def second(database: Database) -> None:
        told.append(("second", database.available))

    storage.on_open += [first, second]
    assert generate_latest(registry) == b""
    assert storage.database is None
    opened = await asyncio.gather(*(storage.opened() for _ in range(3)))
    assert len(set(opened)) == 1
    assert told == [("first", True), ("second", True)]
    assert b"tidemill_database_available 1.0" in generate_latest(registry)
    await storage.close()
    assert storage.database is None


async def test_a_damaged_file_is_said_in_a_line_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    location = location_of(None, tmp_path)
    assert location is not None
    assert location.path is not None
    storage = Storage(location, DatabaseMetrics(CollectorRegistry()))
    database = await storage.opened()

    async def end() -> None:
        await database.write(lambda c: c.exec_driver_sql("DELETE FROM files"))

    storage.on_close.append(end)
    # What another program writes has the server's connections read the file again.
    other = sqlite3.connect(location.path)
    other.execute("INSERT INTO settings (name, value) VALUES ('other', '1')")
    other.commit()
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    location.path.write_bytes(b"garbage " * (4096))
    other.close()
    await storage.close()
    [said] = [r for r in caplog.records if "could not end" in r.getMessage()]
    assert "not a database" in said.getMessage() or "malformed" in said.getMessage()
    assert said.exc_info is None


async def test_one_that_does_not_answer_at_first_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.server.storage.RETRY_SECONDS", 0.1)
    with running() as server, server.database() as url:
        server.stop(signal.SIGQUIT)
        location = location_of(url, tmp_path)
        assert location is not None
        storage = Storage(location, DatabaseMetrics(CollectorRegistry()))
        with pytest.raises(DatabaseUnavailable):
            await storage.opened(patience=0.5)
        server.start()
        assert (await storage.opened(patience=60)).available
        await storage.close()
