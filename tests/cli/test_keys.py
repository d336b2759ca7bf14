"""`tidemill keys`, `teams` and `users`: without a server, and beside one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from helpers.real_server import RealServer

from tidemill.cli.db import db
from tidemill.cli.keys import keys
from tidemill.cli.teams import teams, users

GROUPS = {"keys": keys, "teams": teams, "users": users}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_DATABASE", raising=False)
    return tmp_path / "home"


def _run(group: str, *arguments: str) -> Result:
    return CliRunner().invoke(GROUPS[group], arguments)


def _json(group: str, *arguments: str) -> Any:
    found = _run(group, *arguments, "--json")
    assert found.exit_code == 0, (found.output, found.exception)
    return json.loads(found.stdout)


def test_a_key_from_its_making_to_its_end(home: Path) -> None:
    made = _json(
        *("keys", "create", "ann", "--models", "brook*,x", "--models", "y", "--rpm", "60"),
        *("--address", "10.0.0.0/8", "--max-tokens", "5", "--expires", "90d", "--no-content"),
        *("--priority", "background", "--role", "user"),
    )
    assert made["key"].startswith("tm-") and made["id"].startswith("key-")
    assert made["models"] == ["brook*", "x", "y"]
    assert abs(made["expires"] - time.time() - 90 * 86400) < 60
    assert (made["priority"], made["no_content"], made["max_tokens"]) == ("background", True, 5)
    listed = _json("keys", "list")["keys"]
    assert [k["name"] for k in listed] == ["ann"] and "key" not in listed[0]
    assert made["key"] not in _run("keys", "show", "ann").output
    assert made["limits"] == {"requests_per_minute": 60}
    assert "limits: requests_per_minute=60\n" in _run("keys", "show", "ann").output
    limited = _json("keys", "change", "ann", "--tpm", "1000", "--rpm", "none")["limits"]
    assert limited == _json("keys", "show", "ann")["limits"]
    assert limited["tokens_per_minute"] == 1000 and limited["requests_per_minute"] != 60
    changed = _json("keys", "change", "ann", "--models", "any", "--expires", "never", "--disable")
    assert (changed["models"], changed["expires"], changed["state"]) == (None, None, "disabled")
    assert changed["addresses"] == ["10.0.0.0/8"]  # what is not said stays
    rotated = _json("keys", "rotate", "ann", "--overlap", "1d")
    assert rotated["id"] == made["id"] and rotated["key"] != made["key"]
    assert len(rotated["secrets"]) == 2
    assert _json("keys", "revoke", made["id"])["state"] == "revoked"
    assert _json("keys", "list")["keys"] == []
    assert len(_json("keys", "list", "--revoked")["keys"]) == 1
    assert {p.name for p in home.iterdir()} >= {"tidemill.db", "secret"}


def test_only_the_secret_is_on_stdout(home: Path) -> None:
    made = _run("keys", "create", "ann")
    assert made.stdout.strip().startswith("tm-") and made.stdout.count("\n") == 1
    assert "every route but the probes" in made.stderr
    assert "every route" not in _run("keys", "create", "bob").stderr


def test_teams_and_users(home: Path) -> None:
    assert _json("teams", "create", "search", "--organisation", "acme")["organisation"] == "acme"
    assert _json("users", "create", "carol", "--role", "manager", "--team", "search")["role"] == (
        "manager"
    )
    made = _json("keys", "create", "c1", "--user", "carol")
    assert (made["role"], made["team"], made["user"]) == ("manager", "search", "carol")
    assert _json("teams", "show", "search")["keys"] == ["c1"]
    assert _json("teams", "change", "search", "--rename", "find")["name"] == "find"
    assert _json("users", "change", "carol", "--disable")["disabled"] is True
    assert [u["name"] for u in _json("users", "list", "--team", "find")["users"]] == ["carol"]
    assert [t["name"] for t in _json("teams", "list")["teams"]] == ["find"]


def test_the_schema_goes_back_and_forth_and_keeps_the_keys(home: Path) -> None:
    _json("keys", "create", "ann")
    for arguments in (("--to", "0001"), ()):
        assert CliRunner().invoke(db, ["migrate", *arguments]).exit_code == 0
        assert [k["name"] for k in _json("keys", "list")["keys"]] == ["ann"]
    found = CliRunner().invoke(db, ["migrate", "--to", "base"])
    assert "remove everything" in str(found.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "x'; DROP TABLE keys"), "letters, digits"),
        (("create", "a", "--role", "root"), "role must be one of"),
        (("create", "a", "--expires", "soon"), "90d"),
        (("create", "a", "--expires", "2020-01-01"), "in the past"),
        (("create", "a", "--models", "any,b"), "stands alone"),
        (("create", "a", "--team", "nowhere"), "no team"),
        (("show", "nobody"), "no key"),
        (("create", "a", "--database", "none"), "needs a database"),
    ],
)
def test_mistakes_say_what_to_do(home: Path, arguments: tuple[str, ...], words: str) -> None:
    found = _run("keys", *arguments)
    assert found.exit_code != 0
    assert words in str(found.exception)


def test_a_key_file_moves_in(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(
        '[[keys]]\nname = "ann"\nkey = "0123456789abcdef0123"\nrole = "admin"\nrpm = 3\n'
    )
    file.chmod(0o600)
    assert [k["name"] for k in _json("keys", "import", str(file))["keys"]] == ["ann"]
    assert _json("keys", "show", "ann")["role"] == "admin"
    again = _run("keys", "import", str(file))
    assert "already" in str(again.exception)


@pytest.fixture
def server(home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealServer]:
    monkeypatch.setenv("TIDEMILL_DATABASE", database_url)  # of the commands, too
    with RealServer() as found:
        yield found


def test_the_first_key_closes_a_running_server_and_rules_hold(server: RealServer) -> None:
    def status(key: str | None, path: str = "/v1/models") -> int:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.get(f"{server.url}{path}", headers=headers, timeout=60).status_code

    def until(key: str | None, wanted: int) -> None:
        deadline = time.monotonic() + 30
        while status(key) != wanted:
            assert time.monotonic() < deadline, f"not {wanted} after 30 s"
            time.sleep(0.1)

    assert status(None) == 200
    key = _json("keys", "create", "ann")["key"]
    until(None, 401)
    until(key, 200)
    assert status(key, "/metrics") == 403
    assert status(None, "/healthz") == 200
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    headers = {"authorization": f"Bearer {key}"}
    chat = f"{server.url}/v1/chat/completions"
    assert httpx.post(chat, json=body, headers=headers, timeout=60).status_code == 200
    _json("keys", "change", "ann", "--models", "other*")
    deadline = time.monotonic() + 30
    while httpx.post(chat, json=body, headers=headers, timeout=60).status_code != 403:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    _json("keys", "revoke", "ann")
    until(key, 401)
    assert status(None) == 401
