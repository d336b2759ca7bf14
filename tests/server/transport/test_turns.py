"""Turns of the event loop, and the lane for what is large."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.loop_meter import LoopMeter
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.server.admission.lane import Lane
from tidemill.server.transport.turns import MAX_STARTS_PER_TURN, next_turn


async def test_pieces_that_come_together_take_turns() -> None:
    done: list[int] = []
    turn = 0
    turns: list[int] = []

    async def piece(i: int) -> None:
        await next_turn()
        done.append(i)
        turns.append(turn)

    tasks = [asyncio.create_task(piece(i)) for i in range(50)]
    tasks[5].cancel()
    while not all(task.done() for task in tasks):
        turn += 1
        await asyncio.sleep(0)
    assert done == [i for i in range(50) if i != 5]
    assert max(Counter(turns).values()) == MAX_STARTS_PER_TURN
    assert turns[-1] - turns[0] <= 8  # no turn is wasted
    began = turn
    await next_turn()
    assert turn == began  # alone, nobody waits


async def test_clients_take_turns_in_the_lane() -> None:
    lane, order = Lane(), []

    async def visit(client: str) -> None:
        await lane.enter(client)
        order.append(client)
        await asyncio.sleep(0)
        lane.leave()

    tasks = [asyncio.create_task(visit(c)) for c in "aaaabbc"]
    await asyncio.sleep(0)
    tasks[1].cancel()  # one that waits leaves
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "b", "c", "a", "b", "a"]
    async with asyncio.timeout(5):
        await visit("d")


def _post(url: str, path: str, body: bytes, found: list[bytes]) -> None:
    parts = urlsplit(url)
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" % path.encode()
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        found.append(connection.recv(1000)[9:12])


IDS = b'{"prompt":[' + b",".join([b"123"] * 1_500_000) + b"]}"
MESSAGES = json.dumps({"messages": [{"role": "user", "content": "abc " * 600}] * 2000}).encode()
TEXT = json.dumps({"prompt": "hello world " * 500_000}).encode()
DETOKENIZE = b'{"tokens":[' + b",".join([b"101"] * 250_000) + b"]}"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", IDS, b"400"),
        ("/v1/completions", TEXT, b"400"),
        ("/v1/chat/completions", MESSAGES, b"400"),
        ("/detokenize", DETOKENIZE, b"200"),
    ],
    ids=["ids", "text", "messages", "detokenize"],
)
def test_large_bodies_are_read_beside_others(path: str, body: bytes, status: bytes) -> None:
    meter = LoopMeter()

    def attack() -> None:
        found: list[bytes] = []
        clients = [threading.Thread(target=_post, args=(url, path, body, found)) for _ in range(3)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert found == [status] * 3

    with serving(fake_context(ScriptedEngine()), meter=meter) as url:
        assert meter.least(attack, 0.15) < 0.15


def test_many_requests_at_once_hold_up_no_probe() -> None:
    meter = LoopMeter()
    body = json.dumps({"messages": [{"role": "user", "content": "a"}] * 300}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with serving(fake_context(ScriptedEngine()), meter=meter) as url:
        parts = urlsplit(url)

        def attack() -> None:
            open_ones = []
            for _ in range(300):
                connection = socket.create_connection((parts.hostname, parts.port), timeout=60)
                data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1]
                connection.sendall(data)
                open_ones.append(connection)
            httpx.get(f"{url}/healthz")
            meter.reset()
            for connection in open_ones:
                connection.sendall(body[-1:])
            for connection in open_ones:
                assert connection.recv(1000)[9:12] == b"400"
                connection.close()

        # Twice that and more in one go.
        assert meter.least(attack, 0.05) < 0.05


def test_many_choices_begin_beside_others() -> None:
    meter = LoopMeter()
    engine = ScriptedEngine(lambda request, choice: [97], info=fake_info(num_blocks=10_000))
    body = json.dumps({"prompt": ["a"] * 256, "n": 16, "max_tokens": 1, "stop": ["xy"]}).encode()
    with serving(fake_context(engine), meter=meter) as url:

        def ask() -> None:
            found: list[bytes] = []
            _post(url, "/v1/completions", body, found)
            assert found == [b"200"]

        assert meter.least(ask, 0.2) < 0.2


def test_tiny_chunks_are_refused() -> None:
    text = b'{"prompt": "' + b"a" * 5000 + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    few = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    with serving(fake_context(ScriptedEngine())) as url:
        parts = urlsplit(url)
        answers: list[Any] = []
        for data in (chunks, b"".join(b"1\r\n%c\r\n" % byte for byte in few) + b"0\r\n\r\n"):
            with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
                connection.sendall(head + data)
                time.sleep(0.05)
                answers.append(connection.recv(1000))
    assert answers[0].startswith(b"HTTP/1.1 400") and b"less than 64 bytes" in answers[0]
    assert answers[1].startswith(b"HTTP/1.1 200")


def test_the_prompts_of_a_body_have_places(base_url: str, engine: ScriptedEngine) -> None:
    before = len(engine.requests)
    answer = httpx.post(base_url + "/v1/completions", json={"prompt": ["a", "b", "c"]}, timeout=10)
    assert answer.status_code == 200
    assert [r.place for r in engine.requests[before:]] == [0, 1, 2]
