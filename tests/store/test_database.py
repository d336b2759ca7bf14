"""Transactions, migrations and outages, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from helpers.postgres import Postgres, running

from tidemill.base.errors import TidemillError
from tidemill.store import database as database_module
from tidemill.store.backup import back_up
from tidemill.store.database import Database
from tidemill.store.location import Location, location_of
from tidemill.store.migrations.migrate import revision_of, run_revisions, script
from tidemill.store.schema import HEAD, VERSION_TABLE, metadata
from tidemill.store.tables.identity import ORGANISATIONS, TEAMS
from tidemill.store.tables.settings import CHANGES, SETTINGS
from tidemill.store.unavailable import DatabaseUnavailable
from tidemill.store.upsert import upsert


def _set(name: str, value: str) -> sa.Insert:
    return SETTINGS.insert().values(name=name, value=value)


def _values(connection: sa.Connection) -> dict[str, str]:
    return {row.name: row.value for row in connection.execute(sa.select(SETTINGS))}


async def test_what_was_committed_is_there_after_opening_again(location: Location) -> None:
    database = Database(location)
    await database.open()
    await database.write(lambda c: c.execute(_set("a", "1")))
    with pytest.raises(ZeroDivisionError):
        await database.write(lambda c: (c.execute(_set("b", "2")), 1 / 0))
    await database.close()
    await database.open()
    assert await database.read(_values) == {"a": "1"}
    await database.close()


async def test_a_caller_that_is_cancelled_leaves_a_whole_transaction(location: Location) -> None:
    database = Database(location)
    await database.open()
    task = asyncio.ensure_future(
        database.write(lambda c: (c.execute(_set("a", "1")), c.execute(_set("b", "2"))))
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await database.close()
    await database.open()
    assert len(await database.read(_values)) in (0, 2)
    await database.close()


async def test_references_and_uniqueness_hold(location: Location) -> None:
    database = Database(location)
    await database.open()
    team = {"id": "t", "organisation_id": "none", "name": "t", "created": 0, "disabled": False}
    with pytest.raises(sa.exc.IntegrityError):
        await database.write(lambda c: c.execute(TEAMS.insert().values(team)))
    assert database.available
    await database.close()


async def test_upsert_adds_and_sets(location: Location) -> None:
    database = Database(location)
    await database.open()
    for amount in (1, 10):
        rows = [{"name": name, "version": amount} for name in "ab"]
        await database.write(lambda c, r=rows: upsert(c, CHANGES, r, add=["version"]))
    await database.write(lambda c: upsert(c, CHANGES, [{"name": "a", "version": 5}]))
    await database.write(
        lambda c: upsert(c, CHANGES, [{"name": "b", "version": 5}], set_=["version"])
    )
    found = await database.read(
        lambda c: {row.name: row.version for row in c.execute(sa.select(CHANGES))}
    )
    assert found == {"a": 11, "b": 5}
    await database.close()


async def test_writers_of_two_programs_wait_for_each_other(location: Location) -> None:
    databases = [Database(location), Database(location)]
    for database in databases:
        await database.open()
    await databases[0].write(lambda c: c.execute(CHANGES.insert().values(name="n", version=0)))

    def add(connection: sa.Connection) -> None:
        select = sa.select(CHANGES.c.version).with_for_update()
        version = connection.execute(select).scalar_one()
        connection.execute(CHANGES.update().values(version=version + 1))

    await asyncio.gather(*(databases[i % 2].write(add) for i in range(40)))
    select = sa.select(CHANGES.c.version)
    assert await databases[1].read(lambda c: c.execute(select).scalar()) == 40
    for database in databases:
        await database.close()


async def test_servers_that_start_at_once_migrate_once(location: Location) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tidemill.store.database import Database\n"
        "from tidemill.store.location import location_of\n"
        "async def main():\n"
        "    database = Database(location_of(sys.argv[1], Path('.')))\n"
        "    await database.open()\n"
        "    await database.close()\n"
        "asyncio.run(main())\n"
    )
    url = location.url.replace("+aiosqlite", "").replace("+asyncpg", "")
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, url) for _ in range(3)
    ]
    assert [await process.wait() for process in started] == [0, 0, 0]
    database = Database(location)
    await database.open()
    assert await database.read(revision_of) == HEAD
    await database.close()


def _tables(connection: sa.Connection) -> dict[str, object]:
    """The schema as the database describes it, without what two ways of making it may order."""
    inspector = sa.inspect(connection)
    return {
        name: (
            [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)],
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted(
                (i["name"], i["column_names"], i["unique"]) for i in inspector.get_indexes(name)
            ),
            sorted((u["name"], u["column_names"]) for u in inspector.get_unique_constraints(name)),
            sorted(
                (f["name"], f["constrained_columns"], f["referred_table"])
                for f in inspector.get_foreign_keys(name)
            ),
        )
        for name in inspector.get_table_names()
    }


async def test_revisions_make_the_schema_and_take_it_back(location: Location) -> None:
    """Up and down, step by step; the tables are those that a new database gets at once."""
    database = Database(location)
    await database.open()
    whole = await database.read(_tables)
    chain = [each.revision for each in script().walk_revisions()][::-1]
    assert chain[-1] == HEAD, "store.schema.HEAD is not the last revision"
    seen = {}
    for revision in reversed(chain):
        await database.migrate(revision)
        seen[revision] = await database.read(_tables)
    await database.migrate("base")
    assert await database.read(_tables) == {}
    for revision in chain:
        if revision == HEAD and len(chain) == 1:
            # The first revision is otherwise never run: an empty database gets all at once.
            await database.write(lambda c: run_revisions(c, None, HEAD))
        else:
            await database.migrate(revision)
        assert await database.read(_tables) == seen[revision], revision
    assert await database.read(_tables) == whole
    assert set(whole) == {*metadata().tables, VERSION_TABLE}
    await database.close()


async def test_rows_survive_the_way_down_to_the_first_revision_and_up(location: Location) -> None:
    database = Database(location)
    await database.open()
    organisation = {"id": "o", "name": "o", "created": 1}
    team = {"id": "t", "organisation_id": "o", "name": "t", "created": 0, "disabled": False}

    def fill(connection: sa.Connection) -> None:
        connection.execute(ORGANISATIONS.insert().values(organisation))
        connection.execute(TEAMS.insert().values(team))

    await database.write(fill)
    await database.migrate("0001")
    await database.migrate()
    found = await database.read(lambda c: c.execute(sa.select(TEAMS)).mappings().one())
    assert found.items() >= team.items()
    await database.close()


async def test_a_database_of_a_newer_program_or_another_is_refused(location: Location) -> None:
    database = Database(location)
    await database.open()
    await database.write(
        lambda c: c.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num='z'"))
    )
    with pytest.raises(TidemillError, match="newer than this version"):
        await database.open()
    await database.close()


async def test_a_revision_that_does_not_exist_is_said(location: Location) -> None:
    database = Database(location)
    await database.open()
    with pytest.raises(TidemillError, match="no revision '0999'"):
        await database.migrate("0999")
    assert await database.read(revision_of) == HEAD
    await database.close()


async def test_another_programs_tables_are_left_alone(location: Location) -> None:
    database = Database(location)
    await database.open()
    await database.write(lambda c: c.execute(sa.text(f"DROP TABLE {VERSION_TABLE}")))
    with pytest.raises(TidemillError, match="not Tidemill's"):
        await database.open()
    await database.close()


async def test_a_server_that_stops_is_noticed_and_its_return_too(tmp_path: Path) -> None:
    with running() as server, server.database() as url:
        location = location_of(url, tmp_path)
        assert location is not None
        database = Database(location)
        await database.open()
        await database.write(lambda c: c.execute(_set("a", "1")))
        returned = asyncio.Event()
        database.on_available.append(returned.set)
        await asyncio.to_thread(server.stop)
        with pytest.raises(DatabaseUnavailable):
            await database.read(_values)
        assert not database.available
        assert database.outages == 1
        patient = asyncio.ensure_future(database.read(_values, patience=60))
        await asyncio.to_thread(server.start)
        assert await patient == {"a": "1"}
        async with asyncio.timeout(60):
            await returned.wait()
        assert database.available
        await database.close()


async def test_connections_that_the_server_ended_are_replaced(
    postgres: Postgres, tmp_path: Path
) -> None:
    with postgres.database() as url:
        location = location_of(url, tmp_path)
        assert location is not None
        database = Database(location)
        await database.open()
        await database.write(lambda c: c.execute(_set("a", "1")))
        postgres.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname LIKE 'test_%' AND pid <> pg_backend_pid()"
        )
        assert await database.read(_values, patience=30) == {"a": "1"}
        await database.close()


async def test_a_file_that_is_removed_is_missed_until_a_copy_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BACKOFF_SECONDS", (0.05, 0.1))
    location = location_of(None, tmp_path / "home")
    assert location is not None
    assert location.path is not None
    database = Database(location)
    await database.open()
    await database.write(lambda c: c.execute(_set("a", "1")))
    back_up(location, tmp_path / "copy.db")
    await database.write(lambda c: c.execute(_set("later", "1")))
    for file in (tmp_path / "home").iterdir():
        file.unlink()
    with pytest.raises(DatabaseUnavailable, match="removed"):
        await database.write(lambda c: c.execute(_set("b", "2")))
    await asyncio.sleep(0.3)
    assert not database.available and not location.path.exists(), "made anew"
    whole = (tmp_path / "copy.db").read_bytes()
    location.path.write_bytes(whole[:5000])  # a copy that takes its time
    await asyncio.sleep(0.3)
    assert not database.available
    location.path.write_bytes(whole)
    await database.write(lambda c: c.execute(_set("b", "2")), patience=60)
    assert await database.read(_values) == {"a": "1", "b": "2"}
    assert database.outages == 1
    await database.close()


async def test_a_file_that_is_damaged_does_not_answer_until_it_is_restored(tmp_path: Path) -> None:
    location = location_of(None, tmp_path)
    assert location is not None
    assert location.path is not None
    database = Database(location)
    await database.open()
    await database.write(lambda c: c.execute(_set("a", "1")))
    # What another program writes has the server's connections read the file again.
    other = sqlite3.connect(location.path)
    other.execute("INSERT INTO settings (name, value) VALUES ('other', '1')")
    other.commit()
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = location.path.read_bytes()
    location.path.write_bytes(b"garbage " * (len(whole) // 8))
    other.close()
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable, match=r"not a database|malformed"):
            await database.write(lambda c: c.execute(_set("b", "1")))
    assert not database.available and database.outages == 1
    location.path.write_bytes(whole)
    await database.write(lambda c: c.execute(_set("c", "1")), patience=30)
    assert await database.read(_values) == {"a": "1", "c": "1", "other": "1"}
    await database.close()


async def test_a_file_that_another_program_holds_does_not_answer_and_nothing_is_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.5)
    monkeypatch.setattr(database_module, "BUSY_POLL_SECONDS", 0.1)
    location = location_of(None, tmp_path)
    assert location is not None
    assert location.path is not None
    database = Database(location)
    await database.open()
    other = sqlite3.connect(location.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        async with asyncio.timeout(60):
            writes = [database.write(lambda c, n=n: c.execute(_set(n, "1"))) for n in "abc"]
            found = await asyncio.gather(*writes, return_exceptions=True)
        assert all(isinstance(one, DatabaseUnavailable) for one in found), found
        await asyncio.sleep(0.3)  # it still answers readers
        assert not database.available and database.outages == 1
        with pytest.raises(DatabaseUnavailable, match="locked"):
            await database.write(lambda c: c.execute(_set("d", "1")))
    finally:
        other.execute("ROLLBACK")
        other.close()
    await database.write(lambda c: c.execute(_set("e", "1")), patience=30)
    assert await database.read(_values) == {"e": "1"}
    await database.close()


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    location = location_of(None, tmp_path / "home")
    assert location is not None
    old = os.umask(0)
    try:
        database = Database(location)
        await database.open()
        await database.write(lambda c: c.execute(_set("a", "1")))
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "home").iterdir()}
    finally:
        os.umask(old)
        await database.close()
    assert set(modes.values()) == {0o600}, modes


async def test_nothing_answers(tmp_path: Path) -> None:
    location = location_of(f"postgresql://x:secret@/y?host={tmp_path}", tmp_path)
    assert location is not None
    with pytest.raises(DatabaseUnavailable) as caught:
        await Database(location).open()
    assert "secret" not in caught.value.message
