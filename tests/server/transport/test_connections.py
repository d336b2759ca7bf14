"""Connections by peer, probes when all are taken, and clients that send no more."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.server.access.limits import Limits
from tidemill.server.transport import http
from tidemill.server.transport.connections import PROBE_CONNECTIONS, Connections

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class Fake:
    def __init__(self, connections: Connections, host: str, *, busy: bool = False) -> None:
        self.busy, self.closed = busy, False
        self._connections = connections
        self.kept = connections.enter(self, host)

    def close_idle(self) -> None:
        self.closed = True
        self._connections.leave(self)


def test_one_peer_cannot_keep_another_out() -> None:
    connections = Connections(10)
    greedy = [Fake(connections, "1.1.1.1", busy=i < 4) for i in range(10)]
    assert all(c.kept for c in greedy) and not Fake(connections, "1.1.1.1").kept
    others = [Fake(connections, "2.2.2.2") for _ in range(5)]
    assert all(c.kept for c in others)
    assert not Fake(connections, "2.2.2.2").kept  # it has its share
    assert [c.closed for c in greedy] == [False] * 4 + [True] * 5 + [False]
    assert len(connections) == 10
    assert Fake(connections, "3.3.3.3").kept
    assert len(connections) == 10


def test_what_is_answered_is_never_closed_for_others() -> None:
    connections = Connections(3)
    busy = [Fake(connections, "1.1.1.1", busy=True) for _ in range(3)]
    assert not Fake(connections, "2.2.2.2").kept
    assert not any(c.closed for c in busy)


def test_connections_for_probes_are_bounded() -> None:
    connections = Connections(1)
    Fake(connections, "1.1.1.1", busy=True)
    waiting = [Fake(connections, "1.1.1.1") for _ in range(PROBE_CONNECTIONS + 3)]
    assert [c.closed for c in waiting] == [True] * 3 + [False] * PROBE_CONNECTIONS


@pytest.fixture
def full() -> Iterator[tuple[str, int]]:
    """A server all of whose connections are taken by 127.0.0.1, and answered."""
    engine = ScriptedEngine(step_seconds=30.0)
    body = b'{"prompt": "a"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        context = fake_context(engine, limits=Limits(max_connections=3))
        parts = urlsplit(stack.enter_context(serving(context)))
        assert parts.hostname and parts.port
        address = parts.hostname, parts.port
        for _ in range(3):
            taken = stack.enter_context(socket.create_connection(address, timeout=5))
            taken.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        deadline = time.monotonic() + 10
        while len(engine.requests) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield address


def test_probes_are_answered_when_all_connections_are_taken(full: tuple[str, int]) -> None:
    url = f"http://{full[0]}:{full[1]}"
    for path in ("/healthz", "/readyz"):
        answer = httpx.get(url + path)
        assert answer.status_code == 200 and answer.headers["connection"] == "close"
    refused = httpx.get(f"{url}/v1/models")
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "too_many_connections"


def test_idle_connections_of_one_make_room_for_another() -> None:
    context = fake_context(ScriptedEngine(), limits=Limits(max_connections=4))
    with serving(context) as url, ExitStack() as stack:
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        for _ in range(4):
            idle = stack.enter_context(
                socket.create_connection((parts.hostname, parts.port), timeout=5)
            )
            idle.sendall(GET)
            assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        other = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(transport=other) as client:
            assert client.get(f"{url}/v1/models").status_code == 200


def _half_close(url: str, data: bytes) -> bytes:
    parts = urlsplit(url)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            received += part
    return received


def _post(body: bytes, version: bytes = b"1.1") -> bytes:
    return (
        b"POST /v1/completions HTTP/%b\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (version, len(body), body)
    )


@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_who_sends_no_more_is_answered(stream: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LIVENESS_INTERVALS", (0.01,))
    engine = ScriptedEngine(lambda request, choice: [97] * 5, step_seconds=0.05)
    body = b'{"prompt": "a", "max_tokens": 5, "stream": %b}' % stream
    with serving(fake_context(engine)) as url:
        answer = _half_close(url, _post(body))
        # Several requests behind one another, too, each answered whole.
        several = _half_close(url, _post(body) * 3 + GET)
    while answer.startswith(http._INTERIM):
        answer = answer.removeprefix(http._INTERIM)
    assert (answer.startswith(b"HTTP/1.1 200") and b"aaaaa" in answer) or b"[DONE]" in answer
    assert several.count(b"HTTP/1.1 200") == 4
    for part in several.split(b"HTTP/1.1 200")[1:]:
        assert b"\r\n\r\n" in part
    assert not engine.cancelled


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_who_is_gone_is_noticed_before_an_answer_begins(version: bytes) -> None:
    engine = ScriptedEngine(step_seconds=30.0)
    with serving(fake_context(engine)) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=5) as connection:
            connection.sendall(_post(b'{"prompt": "a"}', version))
            deadline = time.monotonic() + 10
            while not engine.requests:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        while not engine.cancelled:
            assert time.monotonic() < deadline, "it was not noticed"
            time.sleep(0.01)
