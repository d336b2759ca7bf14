"""What the gateway's flags come to."""

from __future__ import annotations

import signal
import subprocess
import sys
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


def test_a_terminal_that_is_closed_cuts_no_answer(tmp_path: Path) -> None:
    (file := tmp_path / "gateway.toml").write_text('[[targets]]\nname = "a"\nurl = "http://a:1"\n')
    command = [sys.executable, "-m", "tidemill", "gateway", "--config", str(file), "--port", "0"]
    with subprocess.Popen(
        [*command, "--database", "none"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "serving 1 targets" in line:
                break
        process.send_signal(signal.SIGHUP)
        rest = process.stderr.read()
        assert "stopping; requests in flight have" in rest
        assert process.wait(20) == 0
