"""Reports of usage."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from sqlalchemy import Connection

from tidemill.base.errors import TidemillError
from tidemill.store.database import Database
from tidemill.store.location import Location
from tidemill.store.recorder import write_spool
from tidemill.store.report import csv_text, document, row_document, time_of
from tidemill.store.spool import take_spool
from tidemill.store.tables.identity import ORGANISATIONS, TEAMS
from tidemill.store.usage import Query, UsageRow, ids_named, lost, total_of, usage
from tidemill.telemetry.record import Operation, Outcome, RequestRecord

HOUR, DAY = 3600, 86400
T0 = 1_800_000_000 // DAY * DAY


def record(hour: int = 0, **changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "id": "r",
        "at": (T0 + hour * HOUR) * 1000 + 5,
        "key": "k1",
        "team": "t1",
        "model": "m",
        "operation": Operation.GENERATE,
        "prompt": 10,
        "generated": 5,
        "charged": True,
        "cost": 2_000_000_000,
    }
    return RequestRecord(**{**values, **changes})


RECORDS = (
    record(),
    record(1),
    record(25, key="k2"),
    record(25, key="k2", model="n", version="2"),
    record(2, team="t2", key="k3"),
    record(3, operation=Operation.EMBED, generated=0, choices=7),
    record(3, outcome=Outcome.REFUSED, code="overloaded", charged=False, cost=None),
    record(3, outcome=Outcome.REFUSED, code="overloaded", charged=False, cost=None),
    record(3, outcome=Outcome.REFUSED, code="invalid_value", charged=False, cost=None),
)


@pytest_asyncio.fixture
async def database(location: Location, tmp_path: Path) -> AsyncIterator[Database]:
    found = Database(location)
    await found.open()
    spool = take_spool(tmp_path / "spool")
    for one in RECORDS:
        spool.append(msgspec.msgpack.encode(one))
    await write_spool(found, spool)
    spool.close()

    def name(c: Connection) -> None:
        c.execute(ORGANISATIONS.insert().values(id="o1", name="org", created=0))
        team = {"id": "t1", "organisation_id": "o1", "name": "search", "created": 0}
        c.execute(TEAMS.insert().values(**team, disabled=False))

    await found.write(name)
    yield found
    await found.close()


async def report(database: Database, *by: str, **choice: Any) -> dict[Any, UsageRow]:
    rows = await database.read(lambda c: usage(c, Query(by=by, **choice)))
    return {tuple(row.group.values()): row for row in rows}


async def test_by_key_and_model(database: Database) -> None:
    found = await report(database, "key", "model", "version")
    assert {group: row.requests for group, row in found.items()} == {
        ("k1", "m", ""): 3,
        ("k2", "m", ""): 1,
        ("k2", "n", "2"): 1,
        ("k3", "m", ""): 1,
    }
    assert found["k1", "m", ""].refused == {"overloaded": 2, "invalid_value": 1}
    assert found["k1", "m", ""].inputs == 7


async def test_by_time(database: Database) -> None:
    days = await report(database, "day")
    assert {group[0]: row.requests for group, row in days.items()} == {T0: 4, T0 + DAY: 2}
    hours = await report(database, "hour", keys=("k1",))
    assert [group[0] for group in hours] == [T0, T0 + HOUR, T0 + 3 * HOUR]
    assert row_document(days[T0 + DAY,])["day"] == "2027-01-16"
    assert row_document(hours[T0 + HOUR,])["hour"] == "2027-01-15T01:00:00Z"


async def test_what_is_chosen(database: Database) -> None:
    assert (await report(database, since=T0 + HOUR, until=T0 + 2 * HOUR))[()].requests == 1
    assert (await report(database, since=T0 + HOUR + 1800))[()].requests == 5  # the hour is whole
    assert (await report(database, teams=("t2",)))[()].requests == 1
    assert (await report(database, models=("n", "x")))[()].requests == 1
    embedded = (await report(database, operations=("embed",)))[()]
    assert (embedded.requests, embedded.refused) == (1, {})
    assert await report(database, keys=("nobody",)) == {}


async def test_the_total_is_the_sum(database: Database) -> None:
    rows = await database.read(lambda c: usage(c, Query(by=("key",))))
    whole = (await report(database))[()]
    assert total_of(rows) == whole
    assert (whole.requests, whole.prompt, whole.generated, whole.cost) == (6, 60, 25, 12 * 10**9)


async def test_names(database: Database) -> None:
    rows = await database.read(lambda c: usage(c, Query(by=("team",))))
    assert [row.names for row in rows] == [{"team": "search"}, {}]  # the other one is gone
    ids = await database.read(lambda c: ids_named(c, "team", ["search", "t2"]))
    assert ids == ("t1", "t2")
    with pytest.raises(TidemillError, match="there is no team 'none'"):
        await database.read(lambda c: ids_named(c, "team", ["none"]))


async def test_documents(database: Database) -> None:
    rows = await database.read(lambda c: usage(c, Query(by=("team", "day"))))
    found = document(Query(by=("team", "day")), rows, total_of(rows), 3, "EUR")
    assert (found["total"]["cost"], found["lost_requests"]) == (12.0, 3)
    assert found["rows"][0]["team_name"] == "search" and found["rows"][0]["refusals"]
    lines = list(csv.DictReader(io.StringIO(csv_text(("team", "day"), rows))))
    assert [line["team"] for line in lines] == ["t1", "t1", "t2"]
    assert (lines[0]["cost"], lines[0]["refused"], lines[0]["team_name"]) == ("6", "3", "search")
    assert await database.read(lost) == 0


async def test_too_many_rows_are_refused(database: Database) -> None:
    with pytest.raises(TidemillError, match="more than 2 rows"):
        await database.read(lambda c: usage(c, Query(by=("key",)), 2))


def test_a_cell_is_no_formula() -> None:
    text = csv_text(("model",), [UsageRow(group={"model": "=1+1"})])
    assert "'=1+1" in text


def test_wrong_questions() -> None:
    with pytest.raises(TidemillError, match="'tea' is none of them"):
        Query(by=("tea",))
    for wrong in ("yesterday", "", "2026-13-01", "99999999999999", "-5", "d", "h"):
        with pytest.raises(TidemillError, match="since must be a date"):
            time_of(wrong, "since")


def test_times() -> None:
    assert time_of("2027-01-15", "x") == T0 == time_of("2027-01-15T00:00Z", "x")
    assert time_of("2027-01-15T02:00+02:00", "x") == T0 == time_of(str(T0), "x")
    assert 0 <= time_of("24h", "x") - time_of("1d", "x") <= 1
