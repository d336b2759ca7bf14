"""A budget over real servers: not one token more than it, though both processes are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from helpers.real_server import RealServer

from tidemill.contract.quotas import Level, parse_limits
from tidemill.server.quotas.leased import ONE
from tidemill.store import limits
from tidemill.store.database import Database
from tidemill.store.location import Location, location_of

LIMIT = 2000
CLIENTS = 48
MOST = 12
KEY = (Level.KEY, "addr:127.0.0.1")


@dataclass
class Storm:
    """Clients that send until the budget refuses each."""

    url: str
    tokens: int = 0
    answered: int = 0
    refused: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until every client was refused, or the server is gone."""
        bounds = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=self.url, timeout=60, limits=bounds) as http:
            await asyncio.gather(*(self._client(http) for _ in range(CLIENTS)))

    async def _client(self, http: httpx.AsyncClient) -> None:
        body = {"prompt": "The river", "max_tokens": MOST, "ignore_eos": True, "seed": 1}
        while True:
            try:
                answer = await http.post("/v1/completions", json=body)
            except httpx.HTTPError:
                return
            if answer.status_code == 429:
                if answer.json()["error"]["code"] == "insufficient_quota":
                    self.refused += 1
                    return
                await asyncio.sleep(0.1)  # requests in flight may give something back
                continue
            assert answer.status_code == 200, answer.text
            self.tokens += answer.json()["usage"]["total_tokens"]
            self.answered += 1
            self.wake.set()

    async def until(self, answered: int) -> None:
        """Wait for answers."""
        async with asyncio.timeout(60):
            while self.answered < answered:
                self.wake.clear()
                await self.wake.wait()


async def test_a_budget_through_kill_9_of_both_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_HOME", str(tmp_path))
    location = location_of(None, tmp_path)
    assert location is not None
    await _set_limit(location)
    flags = ("brook", "--database", location.shown, "--threads", "1")
    storms = []
    for last in (False, True):
        with RealServer(*flags) as server:
            storm = Storm(server.url)
            storms.append(storm)
            running = asyncio.ensure_future(storm.run())
            if not last:
                await storm.until(15)
                os.kill(server.engine().pid, signal.SIGKILL)  # its streams go on, charged once
                await storm.until(40)
                server.process.send_signal(signal.SIGKILL)
                await asyncio.to_thread(server.process.wait, 20)
            await running
    used = sum(storm.tokens for storm in storms)
    assert storms[-1].refused == CLIENTS
    assert used <= LIMIT
    # The kill lost what was drawn: ahead, and by the requests in flight.
    each = MOST + 16
    assert used >= LIMIT - 2 * LIMIT // ONE - CLIENTS * each - each


async def _set_limit(location: Location) -> None:
    database = Database(location)
    await database.open()
    found = parse_limits({"tokens_per_day": LIMIT})
    await database.write(lambda c: limits.set_limits(c, KEY, found))
    await database.close()
