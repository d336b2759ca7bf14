"""What clients got is counted once, though both processes are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest
from helpers.real_server import RealServer

from tidemill.store.audit import sealed_with
from tidemill.store.database import Database
from tidemill.store.location import location_of
from tidemill.store.recorder import drain_left
from tidemill.store.sealing import open_sealer
from tidemill.store.spool import spool_folder
from tidemill.store.tables.usage import USAGE_HOURS
from tidemill.store.verify import verify

CLIENTS = 4


class Client(threading.Thread):
    """Sends requests one after the other until the server is gone."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.answered = self.tokens = 0
        self._http = httpx.Client(base_url=url, timeout=60)
        self._number = number

    def run(self) -> None:
        body = {"model": "brook", "max_tokens": 24, "ignore_eos": True, "seed": self._number}
        while True:
            try:
                answer = self._http.post("/v1/completions", json=body | {"prompt": "The river"})
            except httpx.HTTPError:
                return
            if answer.status_code == 200:
                self.answered += 1
                self.tokens += answer.json()["usage"]["completion_tokens"]


async def test_kill_9_of_both_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    location = location_of(None, tmp_path)
    assert location is not None
    with RealServer("brook", "--database", location.shown, "--threads", "1") as server:
        clients = [Client(server.url, n) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        _wait(clients, 20)
        os.kill(server.engine().pid, signal.SIGKILL)  # the server goes on with its streams
        _wait(clients, 20)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(20)
        for client in clients:
            client.join(60)
    answered, tokens = sum(c.answered for c in clients), sum(c.tokens for c in clients)
    database = Database(location)
    await database.open()
    with sealed_with(open_sealer(tmp_path)):
        await drain_left(spool_folder(tmp_path, location), database)
    rows = await database.read(lambda c: c.execute(USAGE_HOURS.select()).mappings().all())
    counted, generated = (sum(row[name] for row in rows) for name in ("requests", "generated"))
    # An answer is recorded before its last byte is sent: at the kill, one of each client may have
    # been recorded whose end it did not get.
    assert answered <= counted <= answered + CLIENTS
    assert generated - tokens == 24 * (counted - answered)
    reports = await database.read(lambda c: list(verify(c, open_sealer(tmp_path))))
    assert [report.fault for report in reports] == [None, None]
    assert max(report.rows for report in reports) == counted
    await database.close()


def _wait(clients: list[Client], more: int) -> None:
    goal = sum(client.answered for client in clients) + more
    deadline = time.monotonic() + 60
    while sum(client.answered for client in clients) < goal:
        assert time.monotonic() < deadline
        time.sleep(0.01)
