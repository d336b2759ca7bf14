"""Servers behind a gateway are replaced one after the other, under load."""

from __future__ import annotations

import signal
import threading
from typing import Any

import httpx
from helpers.gateway import Door, words_of
from helpers.real_server import RealServer

from tidemill.server.access.security import Security

CHAT = "/v1/chat/completions"
FLAGS = ("--threads", "1", "--database", "none")


def _body(number: int) -> dict[str, Any]:
    return {
        "model": "brook",
        "messages": [{"role": "user", "content": f"Story {number}"}],
        "stream": True,
        "temperature": 0,
        "max_tokens": 24,
        "ignore_eos": True,
    }


class _Client(threading.Thread):
    """Asks one thing after the other until it is told to stop.

    Attributes:
        told: what it was answered, each time.
    """

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.told: list[str] = []
        self.number = number
        self._url = url
        self._over = threading.Event()

    def run(self) -> None:
        """Ask."""
        while not self._over.is_set():
            with httpx.stream(
                "POST", f"{self._url}{CHAT}", json=_body(self.number), timeout=60
            ) as answer:
                self.told.append(f"{answer.status_code} {words_of(answer.read().decode())}")

    def end(self) -> set[str]:
        """Stop; the different answers that it had."""
        self._over.set()
        self.join(60)
        return set(self.told)


def test_no_request_fails_while_each_server_is_replaced() -> None:
    """As an update goes: a server is told to end, and another one starts in its place. Whether its
    streams end there or are gone on with at the other one, all say what they always say."""
    servers = [RealServer(*FLAGS), RealServer(*FLAGS)]
    rows = [{"name": name, "url": one.url} for name, one in zip("ab", servers, strict=True)]
    routing = {"policy": "round-robin", "probe_seconds": 0.2}
    door = Door({"targets": rows, "routing": routing}, Security(), records=True)
    clients = [_Client(door.url, number) for number in range(2)]
    try:
        for client in clients:
            client.start()
        for place, old in enumerate(servers):
            engines = {target.name: target.engines for target in door.fleet.targets}
            assert old.stop(timeout=60) == 0
            port = old.url.rpartition(":")[2]
            servers[place] = RealServer(*FLAGS, "--port", port)
            name, ends = "ab"[place], threading.Event()
            for _ in range(600):  # the gateway has found the new one
                target = door.fleet.targets[place]
                if target.engines != engines[name] and target.health.opened is None:
                    break
                ends.wait(0.05)
            else:
                raise AssertionError(f"{name} did not come back")
            before = [len(client.told) for client in clients]
            while any(len(c.told) < n + 1 for c, n in zip(clients, before, strict=True)):
                ends.wait(0.05)
                assert all(client.is_alive() for client in clients)
        answers = [client.end() for client in clients]
        alone = [
            words_of(servers[0].http.post(CHAT, json=_body(client.number)).text)
            for client in clients
        ]
        assert answers == [{f"200 {words}"} for words in alone]
        assert {record.outcome for record in door.records} == {"finished"}
    finally:
        for client in clients:
            client.end()
        door.close()
        for one in servers:
            one.stop(signal.SIGKILL)
            one.http.close()
