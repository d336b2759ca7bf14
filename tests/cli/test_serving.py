"""From flags to what a server runs: which keys of a database open an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidemill.base.errors import TidemillError
from tidemill.cli.keys import keys
from tidemill.cli.serving import serve_options
from tidemill.deployment.problems import Origin
from tidemill.deployment.reading import Sourced
from tidemill.deployment.resolve import resolve
from tidemill.server.access.security import Security


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMILL_DATABASE", raising=False)


def _security(**flags: Any) -> Security:
    given = {name: Sourced(value, Origin("flag", f"--{name}")) for name, value in flags.items()}
    models = [Sourced("brook", Origin("flag", "the command line"))]
    deployment = resolve(given=given, models=models)
    return serve_options(deployment, lambda line: None).security


def _create(*flags: str) -> None:
    CliRunner().invoke(keys, ["create", "ann", *flags], catch_exceptions=False)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_key_of_the_database_opens_a_public_address(tmp_path: Path, elsewhere: bool) -> None:
    database = f"sqlite:///{tmp_path}/other.db" if elsewhere else None
    where = {} if database is None else {"database": database}
    with pytest.raises(TidemillError, match="there is no API key"):
        _security(host="0.0.0.0", **where)
    _create(*(() if database is None else ("--database", database)))
    found = _security(host="0.0.0.0", **where)
    assert found.keys.closed and found.keys.settled and found.stored is not None


def test_keys_are_required_of_whatever_database_there_is() -> None:
    assert _security(require_keys=True).keys.closed
    assert _security(require_keys=True, database="postgresql://x@db.internal/y").keys.closed
    with pytest.raises(TidemillError, match="--database none"):
        _security(require_keys=True, database="none")


def test_without_a_database_a_public_address_is_wrong_before_any_model() -> None:
    given = {
        name: Sourced(value, Origin("flag", f"--{name}"))
        for name, value in (("host", "0.0.0.0"), ("database", "none"))
    }
    with pytest.raises(TidemillError, match="there is no API key"):
        resolve(given=given)
