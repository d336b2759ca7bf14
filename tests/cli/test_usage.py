"""`tidemill usage` and `tidemill audit`, without a running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tidemill.cli.main import app_of
from tidemill.store.audit import AUDIT_ROWS, seal_with, sealed_with
from tidemill.store.database import Database
from tidemill.store.location import location_of
from tidemill.store.spool import spool_folder, take_spool
from tidemill.telemetry.record import Operation, RequestRecord


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMILL_DATABASE", "")
    with sealed_with(None):
        yield tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app_of(arguments), arguments)
    seal_with(None)
    return result


@pytest.fixture
def left(home: Path) -> None:
    """What a server left in its spool that was killed."""
    location = location_of(None, home)
    assert location is not None
    spool = take_spool(spool_folder(home, location))
    for n in range(4):
        record = RequestRecord(
            f"req-{n}",
            at=1_800_000_000_000 + 86_400_000 * n,
            key="key:a" if n else "key:b",
            model="m",
            operation=Operation.GENERATE,
            prompt=1000,
            charged=True,
            cost=1_500_000_000,
        )
        spool.append(msgspec.msgpack.encode(record))
    spool.close()


@pytest.mark.usefixtures("left")
def test_the_table() -> None:
    result = run("usage", "--since", "2027-01-01", "--until", "2027-12-31", "--by", "key,model")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == [
        "key",
        "model",
        "requests",
        "refused",
        "prompt",
        "cached",
        "generated",
        "cost",
        "USD",
    ]
    assert lines[1] == ["key:a", "m", "3", "0", "3,000", "0", "0", "4.50"]
    assert lines[3] == ["total", "4", "0", "4,000", "0", "0", "6.00"]


@pytest.mark.usefixtures("left")
def test_json_and_csv() -> None:
    since = ("--since", "2027-01-01", "--until", "2027-12-31")
    found = json.loads(run("usage", "--json", *since, "--key", "a").stdout)
    assert (found["total"]["requests"], found["total"]["cost"]) == (3, 4.5)
    lines = run("usage", "--csv", *since, "--by", "day").stdout.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        *("day", "2027-01-15", "2027-01-16", "2027-01-17", "2027-01-18"),
    ]
    assert json.loads(run("usage", "--json", "--until", "1h").stdout)["rows"] == []


@pytest.mark.usefixtures("left")
def test_the_audit_log_is_verified(home: Path) -> None:
    run("usage")
    result = run("audit", "verify")
    assert (result.exit_code, result.output) == (0, "5 rows; 2 of 2 chains are whole\n")
    exported = [json.loads(line) for line in run("audit", "export").stdout.splitlines()]
    [subject] = [line["chain"] for line in exported if line.get("subject") == "req-2"]

    async def harm() -> None:
        location = location_of(None, home)
        assert location is not None
        database = Database(location)
        await database.open()
        changed = AUDIT_ROWS.update().where(AUDIT_ROWS.c.subject == "req-2").values(actor="x")
        await database.write(lambda c: c.execute(changed))
        await database.close()

    asyncio.run(harm())
    result = run("audit", "verify")
    assert result.exit_code == 1
    assert f"row 3 of chain {subject}: changed" in result.output
    found = json.loads(run("audit", "verify", "--json").stdout)
    assert found["valid"] is False
    result = run("audit", "prune", "2027-12-31")
    assert result.exit_code == 1 and f"row 3 of chain {subject}: changed" in result.output
    assert run("audit", "verify").exit_code == 1
    result = run("audit", "prune", "2027-12-31", "--force")
    assert (result.exit_code, result.stdout) == (0, "removed: 4 rows\n")


@pytest.mark.usefixtures("left")
def test_old_rows_are_pruned_and_the_rest_stays_valid() -> None:
    run("usage")
    result = run("audit", "prune", "2027-01-17")
    assert (result.exit_code, result.output) == (0, "removed: 2 rows\n")
    assert run("audit", "verify").output == "4 rows; 2 of 2 chains are whole\n"
    rows = [json.loads(line) for line in run("audit", "export").stdout.splitlines()]
    [receipt] = [row for row in rows if row.get("kind") == "audit.prune"]
    assert receipt["actor"].startswith("cli:") and list(receipt["detail"]["removed"].values()) == [
        2
    ]


def test_the_audit_logs_retention() -> None:
    assert run("audit", "retention").output == "forever\n"
    assert run("audit", "retention", "90d").output == "90d\n"
    assert run("audit", "retention").output == "90d\n"
    assert run("audit", "retention", "forever").output == "forever\n"
    assert run("audit", "retention").output == "forever\n"
    assert "is no age" in str(run("audit", "retention", "soon").exception)


def test_wrong_use() -> None:
    assert "exclude each other" in str(run("usage", "--json", "--csv").exception)
    assert "needs a database" in str(run("usage", "--database", "none").exception)
    assert "'tea' is none" in str(run("usage", "--by", "tea").exception)
