"""What the gateway's flags come to."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.gateway import ASK, words_of
from helpers.scripted_target import (
    Got,
    ScriptedTarget,
    Send,
    begin,
    chat,
    chunk,
    delta,
    event,
    running,
)

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


@contextmanager
def _gateway(file: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway's process, and its URL."""
    command = [sys.executable, "-m", "tidemill", "gateway", "--config", str(file), "--port", "0"]
    process = subprocess.Popen([*command, "--database", "none"], stderr=subprocess.PIPE, text=True)
    try:
        yield process, _line(process, r"serving .* on (http\S+)")[1]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def _line(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"it ended without a line of {pattern}")


def _row(name: str, target: ScriptedTarget) -> str:
    return f'[[targets]]\nname = "{name}"\nurl = "{target.url}"\nkind = "vllm"\nmodels = ["m"]\n'


def test_other_targets_after_sighup_while_a_stream_goes_on(tmp_path: Path) -> None:
    go_on = threading.Event()

    async def slow(got: Got, send: Send) -> None:
        await begin(send)
        await event(send, delta("Hel"))
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        await event(send, delta("lo", finish="stop"))
        await event(send, "[DONE]")
        await chunk(send, b"")

    one, two = ScriptedTarget(slow), ScriptedTarget(chat("two"))
    file = tmp_path / "gateway.toml"
    path = "/v1/chat/completions"
    with running(one, two):
        file.write_text(_row("a", one))
        with _gateway(file) as (process, url), httpx.Client(base_url=url, timeout=30) as http:
            with http.stream("POST", path, json={**ASK, "stream": True}) as response:
                parts = response.iter_text()
                text = next(parts)
                file.write_text(_row("b", two) + "[privacy]\nalways = true\n")
                process.send_signal(signal.SIGHUP)
                said = _line(process, r"1 targets; new or changed: (\w+); gone or changed: (\w+)")
                assert said.groups() == ("b", "a")
                answer = http.post(path, json=ASK)
                assert answer.headers["x-tidemill-target"] == "b"
                assert [t["name"] for t in http.get("/admin/targets").json()["targets"]] == ["b"]
                file.write_text(_row("a", one).replace("url", "ulr"))
                process.send_signal(signal.SIGHUP)
                assert "ulr" in _line(process, r"nothing of .* is applied: (.*)")[1]
                assert http.post(path, json=ASK).status_code == 200
                go_on.set()
                text += "".join(parts)
            assert words_of(text) == "Hello"
