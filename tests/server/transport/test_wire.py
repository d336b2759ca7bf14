"""What comes over a connection from other worlds: old HTTP, other protocols, encodings, silence."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.request import EngineRequest
from tidemill.server.transport import stream


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(fake_context(ScriptedEngine(lambda request, choice: [*b"abc", 257]))) as url:
        yield url


def _sent(url: str, data: bytes) -> bytes:
    """What a server answers to bytes until it closes the connection."""
    parts, received = urlsplit(url), b""
    assert parts.hostname and parts.port
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(data)
        while part := connection.recv(65536):
            received += part
    return received


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("kept", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0_gets_no_chunks(url: str, streamed: bool, kept: bytes) -> None:
    body = b'{"prompt": "a", "stream": %b}' % (b"true" if streamed else b"false")
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n%b" % kept
    answer = _sent(url, head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    head, _, text = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head and b"transfer-encoding" not in head
    assert b"abc" in text or text.startswith(b"data: {")
    assert text.endswith(b"data: [DONE]\n\n" if streamed else b"}")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes.fromhex("16030100c8010000c40303") + bytes(64), b"use http://"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 5 6\r\n", b"PROXY protocol"),
        (b"hello\r\n\r\n", b"no valid HTTP"),
    ],
)
def test_other_protocols_are_named(url: str, data: bytes, said: bytes) -> None:
    answer = _sent(url, data)
    assert answer.startswith(b"HTTP/1.1 400") and said in answer


UMLAUTS = '{"prompt": "\u00e4\u00f6\u00fc", "max_tokens": 1}'


@pytest.mark.parametrize(
    ("charset", "body"),
    [
        ("", b"\xef\xbb\xbf" + UMLAUTS.encode()),
        ("; charset=utf-8", UMLAUTS.encode()),
        ('; Charset="UTF-8"', UMLAUTS.encode()),
        ("; charset=iso-8859-1", UMLAUTS.encode("latin-1")),
        ("; charset=windows-1252", UMLAUTS.encode("cp1252")),
        ("; charset=utf-16", UMLAUTS.encode("utf-16")),
        ("; charset=utf-16le", ("\ufeff" + UMLAUTS).encode("utf-16-le")),
    ],
)
def test_a_body_is_read_in_the_encoding_that_it_has(url: str, charset: str, body: bytes) -> None:
    headers = {"Content-Type": f"application/json{charset}"}
    same = {"prompt": "\u00e4\u00f6\u00fc", "max_tokens": 1}
    plain = httpx.post(f"{url}/v1/completions", json=same)
    found = httpx.post(f"{url}/v1/completions", content=body, headers=headers)
    assert found.status_code == 200, found.text
    assert found.json()["usage"] == plain.json()["usage"]


@pytest.mark.parametrize(
    ("charset", "body", "status"),
    [
        ("", UMLAUTS.encode("latin-1"), 400),
        ("; charset=utf-16", b"{}\xff", 400),
        ("; charset=utf-7", UMLAUTS.encode("utf-7"), 415),
        ("; charset=base64", b"e30=", 415),
    ],
)
def test_other_encodings_are_named(url: str, charset: str, body: bytes, status: int) -> None:
    headers = {"Content-Type": f"application/json{charset}"}
    answer = httpx.post(f"{url}/v1/completions", content=body, headers=headers)
    assert answer.status_code == status
    assert "encoding" in answer.json()["error"]["message"] or "charset" in answer.text


@pytest.mark.parametrize("path", ["//v1/models", "/v1//models", "/v1/models//", "//"])
def test_slashes_too_many_change_nothing(url: str, path: str) -> None:
    parts = urlsplit(url)
    request = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    assert _sent(url, request.encode()).startswith(b"HTTP/1.1 200")


def _slow_start(request: EngineRequest, choice: int) -> list[int]:
    return [*b"abc", 257]


def test_a_silent_stream_sends_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE_SECONDS", 0.05)
    with serving(fake_context(ScriptedEngine(_slow_start, step_seconds=0.5))) as url:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)
    events = answer.text.split("\n\n")
    comments = [event for event in events if event.startswith(":")]
    assert comments and set(comments) == {": keep-alive"}
    # The head and the opening event went out with the first of them, and nothing is there twice.
    assert events[0].count("data: ") == 1 and '"role":"assistant"' in events[0]
    assert ": keep-alive" in events[1]
    assert answer.text.count('"role":"assistant"') == 1
    text = [event for event in events if '"content":"' in event]
    assert [t.split('"content":"')[1][0] for t in text[1:]] == ["a", "b", "c"]
    assert events[-2] == "data: [DONE]"


def test_what_fails_behind_a_comment_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE_SECONDS", 0.05)
    engine = ScriptedEngine(_slow_start, step_seconds=0.5, fail_after=0)
    with serving(fake_context(engine)) as url:
        body = {"prompt": "x", "stream": True}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 200 and answer.text.startswith(": keep-alive\n\n")
    assert '"error":' in answer.text and "[DONE]" not in answer.text
