"""Promise 7 over real sockets: overload is bounded, fair and honest, and deadlines are honoured."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator

import httpx
import pytest
from helpers.real_server import RealServer

QUEUE = 600


@pytest.fixture(scope="module")
def small() -> Iterator[RealServer]:
    """A server with little room, so that a few requests fill it."""
    flags = ("--max-queue-tokens", str(QUEUE), "--max-num-seqs", "2", "--max-queue-time", "30")
    with RealServer(*flags) as running:
        yield running


def body(number: int, tokens: int = 100, **fields: object) -> dict[str, object]:
    prompt = [(7 * number + i) % 200 + 10 for i in range(60)]
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, **fields}


def test_ten_times_too_much_is_refused_at_once_and_comes_back_as_told(small: RealServer) -> None:
    took: list[float] = []
    told: list[bool] = []
    done = 0

    async def one(http: httpx.AsyncClient, number: int) -> None:
        nonlocal done
        waited = False
        for _ in range(8):
            begun = time.monotonic()
            answer = await http.post("/v1/completions", json=body(number))
            if waited:
                told.append(answer.status_code == 200)
            if answer.status_code == 200:
                done += 1
                return
            took.append(time.monotonic() - begun)
            assert answer.status_code == 429, answer.text
            assert answer.json()["error"]["code"] == "overloaded"
            await asyncio.sleep(int(answer.headers["retry-after"]))
            waited = True

    async def main() -> None:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=small.url, timeout=120, limits=limits) as http:
            for number in range(3):  # so that the rate is known
                await http.post("/v1/completions", json=body(900 + number))
            async with asyncio.TaskGroup() as group:
                for number in range(30):
                    group.create_task(one(http, number))

    asyncio.run(main())
    assert done == 30 and took
    # In a quiet process 50 ms (benchmarks/overload.py); here thirty connections open at once.
    assert sorted(took)[len(took) // 2] < 2.0
    # In simulated time and in benchmarks/overload.py at least 80 %; here other tests run beside.
    assert sum(told) >= 0.5 * len(told)
    metrics = small.http.get("/metrics").text
    assert ',reason="queue",tenant=' in metrics
    assert re.search(r"tidemill_queue_tokens\{[^}]*\} 0\.0", metrics)
    assert small.stats()["blocks_used"] == 0


def test_deadlines_end_what_waits_and_what_runs(small: RealServer) -> None:
    answer = small.http.post("/v1/completions", json=body(1, 500, timeout=0.02))
    assert answer.status_code == 408 and answer.json()["error"]["type"] == "timeout_error"
    headers = {"X-Request-Timeout": "0.05"}
    sent = body(2, 500, stream=True)
    with small.http.stream("POST", "/v1/completions", json=sent, headers=headers) as stream:
        lines = [line for line in stream.iter_lines() if line]
    if stream.status_code == 200:  # a token came in time; the end is an event
        last = json.loads(lines[-1].removeprefix("data: "))
        assert last["error"]["type"] == "timeout_error"
    else:
        assert stream.status_code == 408
    deadline = time.monotonic() + 5
    while small.stats()["blocks_used"] and time.monotonic() < deadline:
        time.sleep(0.02)
    stats = small.stats()
    assert stats["blocks_used"] == 0 and stats["expired"] >= 2


def test_what_was_chosen_is_said(small: RealServer) -> None:
    assert f"queue: {QUEUE} tokens may wait" in small.text
    assert "Retry-After" in small.text
