"""Data of earlier versions: a server opens it, and it goes back to the version it came from.

`fixtures/releases/` has a folder for each: made by that version's own commands (`teams create`,
`keys create`, `keys revoke`), then dumped. A release adds one (docs/installing.md).
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.real_server import RealServer

from tidemill.cli.db import db
from tidemill.cli.keys import keys

RELEASES = sorted((Path(__file__).parents[1] / "fixtures" / "releases").iterdir())


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TIDEMILL_HOME as an earlier version left it."""
    connection = sqlite3.connect(tmp_path / "tidemill.db")
    connection.executescript((request.param / "database.sql").read_text())
    connection.close()
    for name in ("secret", "data.json"):
        shutil.copy(request.param / name, tmp_path)
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    monkeypatch.delenv("TIDEMILL_DATABASE", raising=False)
    return tmp_path


# What people would miss; other tables follow the server's use.
KEPT = ("organisations", "teams", "keys", "key_secrets", "audit_rows")


def _found(home: Path) -> tuple[dict[str, list[Any]], dict[str, set[Any]]]:
    """Columns of every table, and the rows of some."""
    connection = sqlite3.connect(home / "tidemill.db")
    tables = [n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    columns = {
        table: sorted(row[1:] for row in connection.execute(f"PRAGMA table_info({table})"))
        for table in tables
    }
    rows = {table: set(connection.execute(f"SELECT * FROM {table}")) for table in KEPT}
    connection.close()
    return columns, rows


def _run(group: Any, *arguments: str) -> str:
    found = CliRunner().invoke(group, arguments)
    assert found.exit_code == 0, (found.output, found.exception)
    return found.stdout


def test_data_of_an_earlier_version_is_served_and_goes_back(home: Path) -> None:
    facts = json.loads((home / "data.json").read_text())
    schema, before = _found(home)
    with RealServer("brook", "--database", f"sqlite:///{home}/tidemill.db") as server:
        for names, status in ((facts["keys"], 200), (facts["revoked"], 401)):
            for name, secret in names.items():
                headers = {"Authorization": f"Bearer {secret}"}
                assert server.http.get("/v1/models", headers=headers).status_code == status, name
        assert server.http.get("/v1/models").status_code == 401
        headers = {"Authorization": f"Bearer {facts['keys']['reader']}"}
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        assert server.http.post("/v1/chat/completions", json=body, headers=headers).is_success
    listed = {one["name"]: one for one in json.loads(_run(keys, "list", "--json"))["keys"]}
    assert listed["reader"]["team"] == "research" and listed["operator"]["role"] == "admin"
    _run(db, "migrate", "--to", facts["revision"])
    schema_again, after = _found(home)
    assert schema_again == schema
    for table in KEPT:
        assert before[table] <= after[table], table
