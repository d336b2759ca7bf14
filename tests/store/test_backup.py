"""Backups while somebody writes, and what purging leaves."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import stat
import subprocess
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from tidemill.base.errors import TidemillError
from tidemill.store import audit, content, files
from tidemill.store.backup import back_up
from tidemill.store.content import LinkRow, ResponseRow
from tidemill.store.database import Database
from tidemill.store.files import File
from tidemill.store.location import Location, location_of
from tidemill.store.purge import forget, owners_of, purge
from tidemill.store.tables.audit import AUDIT_ROWS


async def opened(location: Location) -> Database:
    database = Database(location)
    await database.open()
    return database


def respond(connection: sa.Connection, owner: str, number: int) -> None:
    given = LinkRow(f"{owner}g{number}", owner, None, 0, b"in")
    output = LinkRow(f"{owner}o{number}", owner, given.id, 0, b"out")
    row = ResponseRow(f"{owner}r{number}", owner, "", 0, given.id, output.id, b"x")
    content.save_response(connection, row, [given, output])


async def test_a_backup_beside_a_writer_is_whole(location: Location, tmp_path: Path) -> None:
    if location.path is None and shutil.which("pg_dump") is None:
        pytest.fail("pg_dump is missing: .ci/requirements.py installs it")
    database = await opened(location)
    writing = True

    async def write() -> int:
        number = 0
        while writing:
            await database.write(partial(respond, owner="a", number=number))
            number += 1
        return number

    task = asyncio.ensure_future(write())
    await asyncio.sleep(0.05)
    target = tmp_path / "copy"
    size = await asyncio.to_thread(back_up, location, target)
    writing = False
    count = await task
    await database.close()
    assert size == target.stat().st_size > 1000
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(TidemillError, match="exists"):
        back_up(location, target)
    if location.path is None:
        listed = subprocess.run(
            ["pg_restore", "--list", str(target)], capture_output=True, text=True, check=True
        )
        assert "content_responses" in listed.stdout
        return
    copy = sqlite3.connect(target)
    [(kept,)] = copy.execute("SELECT count(*) FROM content_responses")
    [(links,)] = copy.execute("SELECT count(*) FROM content_links")
    assert 0 < kept <= count and links == 2 * kept
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".copy")] == []


async def test_purging_removes_content_and_leaves_a_receipt(location: Location) -> None:
    database = await opened(location)

    def work(connection: sa.Connection) -> None:
        for owner in ("key:a", "key:b"):
            respond(connection, owner, 1)
            file = File(f"f{owner}", owner, "batch", "n", files.READY, 3, 0, None, None)
            files.begin(connection, file)
            files.append(connection, file.id, 0, b"abc")
        assert owners_of(connection, "a") == ["key:a"] == owners_of(connection, "key:a")
        with pytest.raises(TidemillError, match="nobody"):
            owners_of(connection, "nobody")
        with audit.sealed_with(None):
            found = purge(connection, "cli:me", ["key:a"])
        assert found == {"responses": 1, "conversations": 0, "files": 1, "batches": 0}
        assert content.counted(connection, ["key:a", "key:b"])["responses"] == 1
        assert files.find(connection, "key:b", "fkey:b") and files.chunk(connection, "fkey:b", 0)
        assert files.chunk(connection, "fkey:a", 0) is None
        acts = connection.execute(sa.select(AUDIT_ROWS.c.kind, AUDIT_ROWS.c.subject)).all()
        assert ("content.purge", "key:a") in [tuple(row) for row in acts]

    await database.write(work)
    await database.close()


async def test_what_was_purged_is_in_no_file(tmp_path: Path) -> None:
    where = location_of(None, tmp_path)
    assert where is not None and where.path is not None
    database = await opened(where)
    word = b"periwinkle" * 50

    def upload(connection: sa.Connection) -> None:
        file = File("f", "key:a", "batch", "n", files.READY, 3, 0, None, None)
        files.begin(connection, file)
        files.append(connection, file.id, 0, word)

    def everything() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.glob("tidemill.db*"))

    await database.write(upload)
    assert word in everything()
    with audit.sealed_with(None):
        await database.write(partial(purge, actor="cli:me", owners=["key:a"]))
    assert forget(where) and word not in everything()
    await database.close()
