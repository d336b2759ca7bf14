"""`tidemill quotas`: limits set and shown, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidemill.base.errors import TidemillError
from tidemill.cli.quotas import quotas


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    monkeypatch.delenv("TIDEMILL_DATABASE", raising=False)

    def command(*arguments: str) -> str:
        result = CliRunner().invoke(quotas, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return command


def test_limits_are_set_lifted_and_removed(run: Any) -> None:
    assert "no limits of their own" in run("show")
    assert run("set", "key", "key:ci", "rpm=60", "soft_money_per_day=0.5") == (
        "key ci: requests_per_minute=60, soft_money_per_day=0.50 (0.00 taken)\n"
    )
    run("set", "server", "tpm=100_000")
    run("set", "key", "ci", "rpm=none", "soft_money_per_day=default")
    assert run("show") == "server: tokens_per_minute=100000\nkey ci: requests_per_minute=none\n"
    (one,) = json.loads(run("show", "key", "ci", "--json"))["quotas"]
    assert one == {
        **{"level": "key", "name": "ci", "id": "key:ci"},
        **{"limits": {"requests_per_minute": "none"}, "used": {}},
    }
    assert json.loads(run("show", "team", "--json")) == {"quotas": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "key", "rpm=1"), "tidemill quotas set key NAME LIMIT=VALUE"),
        (("set", "key", "ci", "rpm"), "'rpm' is no LIMIT=VALUE"),
        (("set", "key", "key:ci", "rmp=1"), "no limit 'rmp'"),
        (("set", "key", "key:ci"), "limits is empty"),
        (("set", "key", "c1", "rpm=1"), "a key of a key file is written key:c1"),
        (("show", "key", "c1"), "there is no key 'c1'"),
        (("set", "server", "search", "rpm=1"), "the server has no name"),
        (("show", "server", "search"), "the server has no name"),
        (("set", "team", "'; drop table limits; --", "rpm=1"), "there is no team"),
        (("set", "person", "ci", "rpm=1"), "level must be one of"),
        (("show", "--database", "none"), "needs a database"),
    ],
)
def test_what_is_wrong_is_named(run: Any, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(TidemillError) as error:
        run(*arguments)
    assert message in error.value.message
