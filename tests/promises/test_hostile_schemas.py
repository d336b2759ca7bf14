"""A schema made to be slow costs its sender, not the others: streams beside it go on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import httpx
import pytest
from helpers.hostile_schemas import HOSTILE
from helpers.real_server import RealServer

ASK = {"messages": [{"role": "user", "content": "Say it."}], "max_tokens": 40, "temperature": 1.0}


class Streams:
    """Free streams that note when their tokens come."""

    def __init__(self, url: str, count: int, alone: str) -> None:
        self._url, self._alone = url, alone
        self.gaps: list[float] = []
        self.wrong: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as http:
            while not self._over.is_set():
                text, times = stream(http)
                self.gaps += [b - a for a, b in pairwise(times)]
                if text != self._alone:
                    self.wrong.append(text)

    def __enter__(self) -> Streams:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def stream(http: httpx.Client) -> tuple[str, list[float]]:
    """One free completion: its text, and when its parts came."""
    parts, times = [], []
    body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "temperature": 0,
            "stream": True}  # fmt: skip
    with http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                times.append(time.monotonic())
                parts += [c["text"] for c in json.loads(line[6:])["choices"]]
    return "".join(parts), times


@pytest.fixture(scope="module")
def alone(server: RealServer) -> str:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        return stream(http)[0]


def timed(act: Callable[[], httpx.Response]) -> tuple[httpx.Response, float]:
    begun = time.monotonic()
    return act(), time.monotonic() - begun


@pytest.mark.parametrize("name", HOSTILE)
def test_the_others_go_on(server: RealServer, alone: str, name: str) -> None:
    body = ASK | HOSTILE[name]
    with (
        httpx.Client(base_url=server.url, timeout=60) as http,
        Streams(server.url, 3, alone) as free,
    ):
        time.sleep(0.3)
        answer, seconds = timed(lambda: http.post("/v1/chat/completions", json=body))
        again, _ = timed(lambda: http.post("/v1/chat/completions", json=body))
        time.sleep(0.2)
    for found in (answer, again):
        assert found.status_code in (200, 400), found.text
        if found.status_code == 400:
            error = found.json()["error"]
            assert error["param"] or "nested more deeply" in error["message"], error
    assert not free.wrong
    # Far above what a busy machine does to a stream; each part's cost is bounded closely in
    # tests/grammar/test_cost.py.
    assert seconds < 20, answer.text[:200]
    assert max(free.gaps) < 5, (name, sorted(free.gaps)[-3:], seconds)
