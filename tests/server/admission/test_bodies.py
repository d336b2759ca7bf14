"""All bodies that are being received are bounded together, in shares by client."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.server.access.auth import Principal
from tidemill.server.access.limits import Limits
from tidemill.server.admission.bodies import Bodies
from tidemill.server.errors import Rejection

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
A, B = (Principal(f"key:{name}", name, None) for name in "ab")


def test_a_client_has_its_share_and_gives_it_back() -> None:
    bodies = Bodies(100)
    with closing(bodies.hold(A)) as first:
        first.need(60)
        first.need(50)  # it has them already
        with closing(bodies.hold(A)) as second, pytest.raises(Rejection) as refused:
            second.need(50)
        assert refused.value.problem.status == 429
        assert "max_bodies_bytes" in refused.value.problem.message
        assert int(refused.value.problem.headers["Retry-After"]) >= 1
        with closing(bodies.hold(B)) as other:
            other.need(50)
        assert bodies.total == 60
    assert bodies.total == 0


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


@pytest.mark.parametrize("announced", [True, False])
def test_unfinished_bodies_are_bounded_and_lock_nobody_out(announced: bool) -> None:
    limits = Limits(max_bodies_bytes=2_000_000, max_body_bytes=1_000_000, body_timeout=30)
    context = fake_context(ScriptedEngine(), limits=limits)
    with serving(context) as url, ExitStack() as stack:
        statuses = []
        for number in range(8):
            connection = stack.enter_context(socket.create_connection(_address(url), timeout=5))
            if announced:
                connection.sendall(HEAD + b"Content-Length: 900000\r\n\r\n" + b"x" * 500_000)
            else:
                part = b"%x\r\n" % 800_000 + b"x" * 800_000 + b"\r\n"
                connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + part)
            connection.settimeout(0.3 if number < 2 else 10)
            try:
                statuses.append(connection.recv(1000)[9:12])
            except TimeoutError:
                statuses.append(b"")
        assert statuses == [b""] * 2 + [b"429"] * 6
        assert context.bodies.total <= limits.max_bodies_bytes
        transport = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(transport=transport) as other:
            body = {"prompt": "a", "max_tokens": 1, "user": "x" * 800_000}
            answer = other.post(f"{url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
    deadline = time.monotonic() + 10
    while context.bodies.total:
        assert time.monotonic() < deadline, "what left is still counted"
        time.sleep(0.01)


def test_a_body_that_stands_still_is_given_up() -> None:
    context = fake_context(ScriptedEngine(), limits=Limits(body_idle_timeout=0.8))
    with serving(context) as url:
        with socket.create_connection(_address(url), timeout=10) as connection:
            connection.sendall(HEAD + b'Content-Length: 1000\r\n\r\n{"prompt"')
            answer = connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 408") and b"nothing more of the body" in answer
        # One that goes on, however slowly, is not.
        body = b'{"prompt": "a", "max_tokens": 1}'
        with socket.create_connection(_address(url), timeout=10) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
            for i in range(0, len(body), 4):
                time.sleep(0.15)
                connection.sendall(body[i : i + 4])
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert context.bodies.total == 0
