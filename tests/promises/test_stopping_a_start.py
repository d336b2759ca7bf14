"""Stopped while it starts: no traceback, no engine left behind, no folder left behind."""

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

pytestmark = pytest.mark.xdist_group("promises")


def _engine(pid: int) -> psutil.Process | None:
    try:
        children = psutil.Process(pid).children()
        return next((c for c in children if "tidemill.engine.process" in c.cmdline()), None)
    except psutil.Error:
        return None


def _engine_started(pid: int, folder: Path) -> bool:
    return _engine(pid) is not None


def _engine_listens(pid: int, folder: Path) -> bool:
    return any(folder.glob("tidemill-*/engine.sock"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("stage", [_engine_started, _engine_listens])
def test_a_signal_during_the_start(
    tmp_path_factory: pytest.TempPathFactory, number: int, stage: Callable[[int, Path], bool]
) -> None:
    folder = tmp_path_factory.mktemp("t")
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill", "serve", "--port", "0", "--kv-memory", "32MiB"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while not stage(process.pid, folder):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    engine = _engine(process.pid)
    # As a terminal does it: Ctrl-C reaches every process of the group.
    os.killpg(process.pid, number)
    _, text = process.communicate(timeout=30)
    assert process.returncode == 0, text
    assert "Traceback" not in text and "stop" in text
    assert engine is None or not engine.is_running()
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    # Every fallback of `tempfile` is a folder too, so it must be wrong after it was chosen.
    code = (
        "import tempfile; tempfile.tempdir = '/proc/nowhere';"
        "import sys; sys.argv = ['tidemill', 'serve', '--port', '0'];"
        "from tidemill.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "set TMPDIR to a" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
