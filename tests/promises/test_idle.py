"""An idle server costs nothing: not one of its threads wakes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from helpers.real_server import RealServer

pytestmark = pytest.mark.xdist_group("promises")

QUIET_SECONDS = 2.0
# Connections kept alive end, the engine looks over its books, pages of the cache are taken: once.
SETTLED_SECONDS = 60.0


def _wakes(pids: tuple[int, ...]) -> dict[str, int]:
    """How often each thread of some processes has gone to sleep, by its path."""
    found = {}
    for task in (path for pid in pids for path in Path(f"/proc/{pid}/task").iterdir()):
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                found[f"{task} {(task / 'comm').read_text().strip()}"] = int(line.split()[1])
    return found


def test_an_idle_server_sleeps(server: RealServer) -> None:
    server.complete(prompt="The river", max_tokens=4)
    pids = (server.process.pid, server.engine().pid)
    deadline = time.monotonic() + SETTLED_SECONDS
    while True:
        before = _wakes(pids)
        time.sleep(QUIET_SECONDS)
        after = _wakes(pids)
        assert len(before) > 2, "threads of both processes"
        if after == before:
            return
        woken = {name: count - before.get(name, 0) for name, count in after.items()}
        assert time.monotonic() < deadline, {name: n for name, n in woken.items() if n}
