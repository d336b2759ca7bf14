"""Records are counted once, whatever is killed, gone, or repeated."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from helpers.postgres import running
from sqlalchemy import Connection

from tidemill.base.errors import TidemillError
from tidemill.store import recorder as module
from tidemill.store.database import Database
from tidemill.store.location import Location, location_of
from tidemill.store.recorder import Recorder, drain_left, write_spool
from tidemill.store.spool import SEGMENT_BYTES, Spool, take_spool
from tidemill.store.tables.audit import AUDIT_ROWS
from tidemill.store.tables.usage import USAGE_HOURS, USAGE_LOST, USAGE_REFUSALS
from tidemill.store.unavailable import DatabaseUnavailable
from tidemill.store.verify import verify
from tidemill.telemetry.record import Operation, Outcome, RequestRecord

HOUR = 3600
T0 = 1_800_000_000 // HOUR * HOUR


def record(number: int, **changes: Any) -> RequestRecord:
    """A record of a request that was answered."""
    values: dict[str, Any] = {
        "id": f"req-{number}",
        "at": T0 * 1000,
        "key": "k1",
        "team": "t1",
        "model": "m",
        "operation": Operation.GENERATE,
        "prompt": 10,
        "cached": 3,
        "generated": 5,
        "reasoning": 2,
        "choices": 1,
        "charged": True,
        "cost": 7,
        "status": 200,
    }
    return RequestRecord(**{**values, **changes})


async def opened(location: Location) -> Database:
    database = Database(location)
    await database.open()
    return database


def rows(table: sa.Table) -> Callable[[Connection], list[dict[str, Any]]]:
    return lambda c: [dict(row) for row in c.execute(sa.select(table)).mappings()]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    found = take_spool(tmp_path / "spool")
    yield found
    found.close()


def append(spool: Spool, *records: RequestRecord) -> None:
    for one in records:
        assert spool.append(msgspec.msgpack.encode(one))


async def test_sums_by_hour_and_owner(location: Location, spool: Spool) -> None:
    append(
        spool,
        record(1),
        record(2),
        record(3, at=(T0 + HOUR) * 1000 - 1),
        record(4, at=(T0 + HOUR) * 1000),
        record(5, key="k2"),
        record(6, operation=Operation.EMBED, generated=0, choices=4, reasoning=0),
        record(7, outcome=Outcome.CANCELLED),
        record(8, outcome=Outcome.FAILED, charged=False, cost=None, code="internal_error"),
        record(9, outcome=Outcome.REFUSED, charged=False, cost=None, code="overloaded", status=429),
        record(10, version="2"),
        record(11, operation=Operation.ADMIN, route="/admin/x", subject="m", charged=False),
    )
    database = await opened(location)
    await write_spool(database, spool)
    found = {
        (row["key_id"], row["hour"], row["version"], row["operation"]): row
        for row in await database.read(rows(USAGE_HOURS))
    }
    assert len(found) == 5
    main = found["k1", T0, "", "generate"]
    assert (main["requests"], main["cancelled"], main["failed"]) == (5, 1, 1)
    assert (main["prompt"], main["cached"], main["generated"], main["reasoning"]) == (40, 12, 20, 8)
    assert (main["cost"], main["inputs"], main["team_id"]) == (28, 0, "t1")
    assert found["k1", T0, "", "embed"]["inputs"] == 4
    assert found["k1", T0 + HOUR, "", "generate"]["requests"] == 1
    [refused] = await database.read(rows(USAGE_REFUSALS))
    assert (refused["code"], refused["requests"], refused["key_id"]) == ("overloaded", 1, "k1")
    audited = await database.read(rows(AUDIT_ROWS))
    of_requests = [row for row in audited if row["chain"] == spool.id]
    assert [row["subject"] for row in of_requests] == [*(f"req-{n}" for n in range(1, 11)), "m"]
    assert [row["kind"] for row in of_requests[9:]] == ["request", "POST /admin/x"]
    assert msgspec.json.decode(of_requests[8]["detail"])["code"] == "overloaded"
    await database.close()


async def test_written_again_it_is_not_counted_again(location: Location, spool: Spool) -> None:
    append(spool, *(record(n) for n in range(300)))
    database = await opened(location)
    before = await write_spool(database, spool)
    assert await write_spool(database, spool) == before
    append(spool, record(300))
    await write_spool(database, spool, before)
    # A second writer that knows an old position changes nothing.
    await write_spool(database, spool, before)
    [row] = await database.read(rows(USAGE_HOURS))
    assert (row["requests"], row["generated"]) == (301, 1505)
    await database.close()


async def test_losses_are_in_the_reports(location: Location, tmp_path: Path) -> None:
    spool = take_spool(tmp_path / "spool", 2 * SEGMENT_BYTES)
    data = msgspec.msgpack.encode(record(1, client="x" * 9000))
    kept = sum(spool.append(data) for _ in range(400))
    spool.append(b"\xc1 no record")
    database = await opened(location)
    await write_spool(database, spool)
    await write_spool(database, spool)
    lost = await database.read(rows(USAGE_LOST))
    assert sum(row["requests"] for row in lost) == 401 - kept
    spool.append(b"\xc1 no record")
    await write_spool(database, spool)
    lost = await database.read(rows(USAGE_LOST))
    assert sum(row["requests"] for row in lost) == 402 - kept
    spool.close()
    await database.close()


class Broken(Database):
    """Goes away at random: before a transaction, within it, or while it commits."""

    def __init__(self, location: Location, rng: random.Random) -> None:
        super().__init__(location)
        self._rng = rng
        self.breaks = Counter[str]()

    async def write(self, work: Any, patience: float = 0.0) -> Any:
        place = self._rng.choice(("before", "within", "after", "no", "no"))
        self.breaks[place] += 1
        if place == "before":
            raise DatabaseUnavailable("x", "gone")
        if place == "within":

            def failing(connection: Connection) -> None:
                work(connection)
                raise DatabaseUnavailable("x", "gone")

            return await super().write(failing, patience)
        result = await super().write(work, patience)
        if place == "after":  # committed, and nobody knows
            raise DatabaseUnavailable("x", "gone")
        return result


@pytest.mark.parametrize("seed", range(4))
async def test_random_schedules_count_everything_once(
    location: Location, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests, kills of the process at every point, outages, clock steps, several servers."""
    rng = random.Random(seed)
    monkeypatch.setattr(module, "BATCH", rng.randrange(1, 40))
    folder = tmp_path / "spool"
    database = Broken(location, rng)
    await database.open()
    expected = Counter[str]()
    spools: list[Spool] = [take_spool(folder) for _ in range(2)]
    number = 0
    for _ in range(60):
        spool = rng.choice(spools)
        for _ in range(rng.randrange(30)):
            number += 1
            outcome = rng.choice(list(Outcome))
            one = record(
                number,
                at=(T0 + rng.randrange(-3 * HOUR, 3 * HOUR)) * 1000,
                key=f"k{rng.randrange(3)}",
                outcome=outcome,
                charged=outcome in (Outcome.FINISHED, Outcome.CANCELLED),
                cost=7 if outcome in (Outcome.FINISHED, Outcome.CANCELLED) else None,
                generated=rng.randrange(100),
                code="c",
            )
            append(spool, one)
            expected["refused" if outcome is Outcome.REFUSED else "requests"] += 1
            if one.charged:
                expected["generated"] += one.generated
                expected["cost"] += 7
        action = rng.choice(("write", "write", "kill", "left"))
        try:
            if action == "write":
                await write_spool(database, spool)
            elif action == "left":
                await drain_left(folder, database)
        except TidemillError:
            pass
        if action == "kill":  # the process forgets everything but its files
            spools.remove(spool)
            spool.close()
            spools.append(take_spool(folder))
    for spool in spools:
        spool.close()
    plain = await opened(location)
    await drain_left(folder, plain)
    found = Counter[str]()
    for row in await plain.read(rows(USAGE_HOURS)):
        for name in ("requests", "generated", "cost"):
            found[name] += row[name]
    for row in await plain.read(rows(USAGE_REFUSALS)):
        found["refused"] += row["requests"]
    assert found == expected
    assert await plain.read(rows(USAGE_LOST)) == []
    subjects = Counter(
        row["subject"] for row in await plain.read(rows(AUDIT_ROWS)) if row["kind"] == "request"
    )
    assert len(subjects) == number and set(subjects.values()) == {1}
    assert database.breaks["after"] and database.breaks["within"]
    await plain.close()
    await database.close()


async def test_a_recorder_writes_in_the_background(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.01)
    database = await opened(location)

    async def open_database() -> Database:
        return database

    recorder = Recorder(tmp_path / "spool", open_database)
    for n in range(200):
        recorder.add(record(n))
    for _ in range(1000):
        if not recorder.behind:
            break
        await asyncio.sleep(0.01)
    [row] = await database.read(rows(USAGE_HOURS))
    assert row["requests"] == 200
    recorder.add(record(200))
    await recorder.close()
    [row] = await database.read(rows(USAGE_HOURS))
    assert row["requests"] == 201
    recorder.add(record(201))  # of no server any more
    await database.close()


async def test_without_a_database_records_wait_and_then_count(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.01, 0.01))
    there = False
    database = await opened(location)

    async def open_database() -> Database:
        if not there:
            raise DatabaseUnavailable("x", "gone")
        return database

    recorder = Recorder(tmp_path / "spool", open_database)
    recorder.add(record(1))
    await asyncio.sleep(0.1)
    assert recorder.behind == 1
    there = True
    for _ in range(1000):
        if not recorder.behind:
            break
        await asyncio.sleep(0.01)
    assert len(await database.read(rows(USAGE_HOURS))) == 1
    await recorder.close()
    await database.close()


async def test_a_server_of_the_database_that_stops_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL crashes amid the writing; every record counts once."""
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.02)
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.05, 0.1))
    monkeypatch.setattr(module, "BATCH", 20)
    with running() as postgres, postgres.database() as url:
        location = location_of(url, tmp_path)
        assert location is not None
        database = await opened(location)

        async def open_database() -> Database:
            return database

        recorder = Recorder(tmp_path / "spool", open_database)
        number = 0
        for round_ in range(12):
            for _ in range(40):
                number += 1
                recorder.add(record(number))
            await asyncio.sleep(0.03)
            if round_ in (3, 8):
                await asyncio.to_thread(postgres.stop, signal.SIGQUIT)
            if round_ in (5, 10):
                await asyncio.to_thread(postgres.start)
        await recorder.close()
        deadline = time.monotonic() + 30
        while not database.available and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        await drain_left(tmp_path / "spool", database)
        [row] = await database.read(rows(USAGE_HOURS))
        assert row["requests"] == number
        audited = [r for r in await database.read(rows(AUDIT_ROWS)) if r["kind"] == "request"]
        expected = Counter(f"req-{n}" for n in range(1, number + 1))
        assert Counter(row["subject"] for row in audited) == expected
        await database.close()


async def test_servers_count_into_the_same_rows_at_once(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 10)
    servers = []
    for number in range(3):
        spool = take_spool(tmp_path / "spool")
        append(spool, *(record(n, key=f"k{(n * 7 + number) % 5}") for n in range(100)))
        servers.append((await opened(location), spool))
    await asyncio.gather(*(write_spool(database, spool) for database, spool in servers))
    database = servers[0][0]
    found = await database.read(rows(USAGE_HOURS))
    assert [row["requests"] for row in found] == [60] * 5
    reports = await database.read(lambda c: list(verify(c, None)))
    assert [report.rows for report in reports] == [3, 100, 100, 100]
    for opened_database, spool in servers:
        spool.close()
        await opened_database.close()


async def test_refusals_of_a_kind_are_one_record_a_flush(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REFUSALS", 3)
    database = await opened(location)

    async def open_database() -> Database:
        return database

    recorder = Recorder(tmp_path / "spool", open_database)

    def refuse(status: int, code: str, client: str) -> None:
        changes = {"status": status, "code": code, "client": client, "key": ""}
        recorder.add(record(1, outcome=Outcome.REFUSED, charged=False, cost=None, **changes))

    for _ in range(50):
        refuse(401, "invalid_api_key", "addr:1")
        refuse(429, "overloaded", "addr:1")
        refuse(404, "model_not_found", "addr:1")
    for n in range(10):  # more clients than are told apart
        refuse(401, "invalid_api_key", f"addr:1{n}")
    await recorder.close()
    counts = Counter[str]()
    for row in await database.read(rows(USAGE_REFUSALS)):
        counts[row["code"]] += row["requests"]
    assert counts == {"invalid_api_key": 60, "overloaded": 50, "model_not_found": 50}
    audited = [r for r in await database.read(rows(AUDIT_ROWS)) if r["kind"] == "request"]
    assert len(audited) == 50 + 2 + 2
    await database.close()


async def test_a_spool_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("no folder")
    lost: list[int] = []

    class Gauges:
        def lost(self, count: int) -> None:
            lost.append(count)

    async def never() -> Database:
        raise AssertionError

    recorder = Recorder(tmp_path / "spool", never)
    recorder.gauges = Gauges()
    recorder.add(record(1))
    recorder.add(record(2))
    assert lost == [1, 1]
    await recorder.close()


async def test_across_ends_of_the_server_every_request_counts(
    location: Location, tmp_path: Path
) -> None:
    """Each server leaves a segment that it prepared, and did not use."""
    database = await opened(location)

    async def open_database() -> Database:
        return database

    big = "x" * 30_000
    for run in range(3):
        recorder = Recorder(tmp_path / "spool", open_database)
        for number in range(20):
            recorder.add(record(100 * run + number, client=big))
        assert recorder.spool is not None
        recorder.spool.prepare()
        await recorder.flush()
        await recorder.close()
    [hours] = await database.read(rows(USAGE_HOURS))
    assert hours["requests"] == 60
    await database.close()


async def test_records_whose_files_are_removed_are_lost_and_said(
    location: Location, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = await opened(location)

    async def open_database() -> Database:
        return database

    recorder = Recorder(tmp_path / "spool", open_database)
    recorder.add(record(1))
    await recorder.flush()
    assert recorder.spool is not None
    for path in recorder.spool.folder.glob("*.seg"):
        path.unlink()
    recorder.add(record(2))
    await recorder.flush()
    assert "1 records that were written are not found" in caplog.text
    recorder.add(record(3))
    await recorder.flush()
    assert recorder.behind == 0
    [hours] = await database.read(rows(USAGE_HOURS))
    [lost] = await database.read(rows(USAGE_LOST))
    assert hours["requests"] == 2 and lost["requests"] == 1
    await recorder.close()
    await database.close()
