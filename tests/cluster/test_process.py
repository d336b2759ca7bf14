"""A server as a child process: it is watched, and ends with whoever watches it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tidemill.cluster.placement import GATEWAY, ProcessSpec
from tidemill.cluster.process import Process

FILE = '[scaled.m]\nhold_seconds = 1\n[routing]\npolicy = "{policy}"\n'


def _until(true: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _spec(*more: str) -> ProcessSpec:
    return ProcessSpec(
        name="g",
        kind=GATEWAY,
        pool="",
        digest="",
        arguments=(
            *("gateway", "--config", "{files}/gateway.toml", "--host", "{host}"),
            *("--port", "{port}", *more),
        ),
        env={"TIDEMILL_API_KEY": "k"},
        files={"gateway.toml": FILE.format(policy="prefix")},
    )


def test_started_again_told_and_stopped() -> None:
    import httpx

    process = Process(_spec(), "127.0.0.1")
    process.start()
    try:
        _until(lambda: process.describe()["phase"] == "ready")
        said = process.describe()

        def policy() -> str:
            url = f"{process.describe()['url']}/admin/targets"
            headers = {"authorization": "Bearer k"}
            try:
                return str(httpx.get(url, headers=headers, timeout=60).json()["policy"])
            except httpx.ReadError:  # it was open already
                return policy()

        assert policy() == "prefix"
        process.write({"gateway.toml": FILE.format(policy="cost")})
        _until(lambda: policy() == "cost")
        os.kill(int(str(said["pid"])), signal.SIGKILL)
        assert policy() == "cost"  # connections wait for the next one
        _until(lambda: process.describe()["exits"] == 1)
        _until(lambda: process.describe()["phase"] == "ready")
        assert process.describe()["url"] == said["url"] and policy() == "cost"
    finally:
        process.stop(10)
    assert not psutil.pid_exists(int(str(said["pid"])))


def test_why_it_does_not_start_is_known() -> None:
    process = Process(_spec("--nonsense"), "127.0.0.1")
    process.start()
    _until(lambda: process.describe()["exits"])
    assert "--nonsense" in str(process.describe()["reason"])
    process.stop(1)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_no_server_outlives_the_process_that_watches_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from tests.cluster.test_process import _spec;"
        "from tidemill.cluster.process import Process;"
        "process = Process(_spec(), '127.0.0.1'); process.start();"
        "[time.sleep(0.05) for _ in iter(lambda: process.describe()['phase'] == 'ready', True)];"
        "print(process.describe()['pid'], flush=True); time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    env = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=root) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
