"""What the gateway's flags come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemill.cli.main import app_of
from tidemill.gateway import run
from tidemill.server.quotas import service


def test_limits_are_spent_for_as_long_as_the_database_may_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "gateway.toml").write_text('[[targets]]\nname = "a"\nurl = "http://a:1"\n')
    given: list[run.GatewayOptions] = []
    monkeypatch.setattr(run, "serve", lambda options, listener, say: given.append(options) or 0)
    database = f"sqlite:///{tmp_path / 'db'}"
    arguments = ["--config", str(file), "--port", "0", "--database", database]
    app_of(["gateway"]).commands["gateway"].main(
        [*arguments, "--database-outage", "90s"], standalone_mode=False
    )
    outages: list[float] = []

    class Service(service.QuotaService):
        def __init__(self, *args: Any) -> None:
            outages.append(args[4])
            super().__init__(*args)

    monkeypatch.setattr(service, "QuotaService", Service)
    run.make_context(given[0])
    assert outages == [90.0]
