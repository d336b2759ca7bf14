"""Keys of the database in a server's memory, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.postgres import running
from prometheus_client import CollectorRegistry

from tidemill.base.clock import wall
from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.access import stored as module
from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.stored import AllKeys, StoredKeys
from tidemill.server.errors import Rejection
from tidemill.server.storage import Storage
from tidemill.store import keys
from tidemill.store.actors import Actor
from tidemill.store.administration import act
from tidemill.store.backup import back_up
from tidemill.store.database import Database
from tidemill.store.key_values import KeyValues
from tidemill.store.location import Location, location_of
from tidemill.store.secret import KeyHash, read_secret

ADMIN = Actor("cli:test")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr("tidemill.server.storage.RETRY_SECONDS", 0.1)


@pytest.fixture
async def database(location: Location) -> AsyncIterator[Database]:
    """The database as another program has it open."""
    found = Database(location)
    await found.open()
    yield found
    await found.close()


def _storage(location: Location) -> Storage:
    return Storage(location, DatabaseMetrics(CollectorRegistry()))


async def _create(database: Database, home: Path, name: str, **values: Any) -> Any:
    hasher = KeyHash(read_secret(home))
    more = KeyValues(**values)
    return await act(database, lambda c: keys.create_key(c, ADMIN, hasher, name, more))


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.02)


async def test_the_first_key_closes_a_running_server(
    location: Location, database: Database, tmp_path: Path
) -> None:
    stored = StoredKeys(location, tmp_path)
    storage = _storage(location)
    # Of a file it is known at once; a server is asked.
    assert stored.closed is not stored.settled
    stored.follow(storage)
    await _until(lambda: stored.settled)
    assert not stored.closed
    made = await _create(database, tmp_path, "ann", models=["brook"], weight=2.0)
    await _until(lambda: stored.closed)
    key = await stored.find(made["key"])
    assert key is not None
    assert (key.name, key.id, key.weight) == ("ann", made["id"], 2.0)
    assert key.policy.models == ("brook",)
    assert key.owner.team_name == "default"
    assert stored.by_id(made["id"]) is key
    assert await stored.find(made["key"][:-1]) is None
    await act(database, lambda c: keys.revoke_key(c, ADMIN, "ann"))
    await _until(lambda: len(stored) == 0)
    assert await stored.find(made["key"]) is None
    assert stored.by_id(made["id"]) is None
    assert stored.closed, "a server whose last key was revoked is not open"
    await storage.close()


async def test_a_server_that_starts_with_keys_is_closed_from_its_first_request(
    location: Location, database: Database, tmp_path: Path
) -> None:
    made = await _create(database, tmp_path, "ann", expires=int(wall()) + 3600)
    stored = StoredKeys(location, tmp_path)
    assert stored.closed
    storage = _storage(location)
    stored.follow(storage)
    # The first request waits until they were read, and is then answered.
    assert await stored.find("wrong") is None
    assert await stored.find(made["key"]) is not None
    await storage.close()


async def test_a_secret_ends_by_itself(
    location: Location, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await _create(database, tmp_path, "ann", expires=int(wall()) + 3600)
    stored = StoredKeys(location, tmp_path)
    storage = _storage(location)
    stored.follow(storage)
    assert await stored.find(made["key"]) is not None
    monkeypatch.setattr(module, "wall", lambda: wall() + 3601)
    assert await stored.find(made["key"]) is None
    await storage.close()


async def test_keys_count_on_for_a_while_without_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as server, server.database() as url:
        location = location_of(url, tmp_path)
        assert location is not None
        database = Database(location)
        await database.open()
        made = await _create(database, tmp_path, "ann")
        await database.close()
        stored = StoredKeys(location, tmp_path, outage=60)
        storage = _storage(location)
        stored.follow(storage)
        assert await stored.find(made["key"]) is not None
        given = AllKeys(StaticKeys(["file-key-0123456789"]), stored)
        server.stop()
        assert storage.database is not None
        await _until(lambda: not storage.database.available)  # type: ignore[union-attr]
        assert await stored.find(made["key"]) is not None
        clock = module.monotonic
        monkeypatch.setattr(module, "monotonic", lambda: clock() + 120)
        with pytest.raises(Rejection) as caught:
            await given.find(made["key"])
        problem = caught.value.problem
        assert (problem.status, problem.code) == (503, "database_unavailable")
        assert "retry-after" in {name.lower() for name in problem.headers}
        assert await given.find("file-key-0123456789") is not None
        monkeypatch.setattr(module, "monotonic", clock)
        server.start()
        await _until(lambda: storage.database.available)  # type: ignore[union-attr]
        assert await given.find(made["key"]) is not None
        await storage.close()


async def test_a_database_that_is_not_there_admits_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.3)
    location = location_of(f"postgresql://x@/y?host={tmp_path}", tmp_path)
    assert location is not None
    stored = StoredKeys(location, tmp_path)
    storage = _storage(location)
    stored.follow(storage)
    for call in (stored.settle(), stored.find("anything")):
        with pytest.raises(Rejection) as caught:
            await call
        assert caught.value.problem.status == 503
    await storage.close()


async def test_keys_of_another_secret_are_said_at_once(
    location: Location, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = await _create(database, tmp_path, "ann")
    stored = StoredKeys(location, tmp_path / "another")
    storage = _storage(location)
    stored.follow(storage)
    began = module.monotonic()
    with pytest.raises(Rejection) as caught:
        await stored.find(made["key"])
    assert module.monotonic() - began < module.SETTLE_SECONDS
    assert caught.value.problem.status == 503
    assert stored.closed
    await _until(lambda: "TIDEMILL_SECRET" in caplog.text)
    await storage.close()


async def test_a_damaged_file_admits_nobody(tmp_path: Path) -> None:
    (tmp_path / "tidemill.db").write_bytes(b"SQLite format 3\0" + b"x" * 8192)
    location = location_of(None, tmp_path)
    assert location is not None
    assert StoredKeys(location, tmp_path).closed


async def test_keys_of_a_file_that_is_removed_count_on_until_it_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = location_of(None, tmp_path)
    assert location is not None
    assert location.path is not None
    database = Database(location)
    await database.open()
    made = await _create(database, tmp_path, "ann")
    back_up(location, tmp_path / "copy.db")
    other = await _create(database, tmp_path, "bob")
    await database.close()
    stored = StoredKeys(location, tmp_path, outage=60)
    storage = _storage(location)
    stored.follow(storage)
    assert await stored.find(other["key"]) is not None
    for file in tmp_path.glob("tidemill.db*"):
        file.unlink()
    await _until(lambda: not storage.database.available)  # type: ignore[union-attr]
    assert await stored.find(made["key"]) is not None
    clock = module.monotonic
    monkeypatch.setattr(module, "monotonic", lambda: clock() + 120)
    with pytest.raises(Rejection) as caught:
        await stored.find(made["key"])
    assert caught.value.problem.status == 503
    monkeypatch.setattr(module, "monotonic", clock)
    assert not location.path.exists()
    (tmp_path / "copy.db").rename(location.path)
    await _until(lambda: len(stored) == 1)
    assert await stored.find(made["key"]) is not None
    assert await stored.find(other["key"]) is None
    assert stored.closed
    await storage.close()


async def test_a_name_of_a_file_is_another_client(tmp_path: Path) -> None:
    location = location_of(None, tmp_path)
    assert location is not None
    database = Database(location)
    await database.open()
    made = await _create(database, tmp_path, "key-1")
    await database.close()
    stored = StoredKeys(location, tmp_path)
    stored.taken = lambda: StaticKeys(["file-key-0123456789"]).names
    storage = _storage(location)
    stored.follow(storage)
    key = await stored.find(made["key"])
    assert key is not None
    assert key.name == f"key-1/{made['id']}"
    await storage.close()
