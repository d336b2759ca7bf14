"""WebSockets: frames as RFC 6455 has them, and what a client may not send."""

from __future__ import annotations

import random

import pytest
from starlette.datastructures import MutableHeaders
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, Ping, TextMessage

from tidemill.server.errors import Rejection
from tidemill.server.transport.websocket import (
    Code,
    Frame,
    Frames,
    Opcode,
    Violation,
    accept_headers,
    frame,
)


def _client() -> Connection:
    return Connection(ConnectionType.CLIENT)


def _texts(found: list[Frame]) -> list[str]:
    return [one.data.decode() for one in found if one.opcode is Opcode.TEXT]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 200_000])
def test_messages_of_any_size_arrive_however_they_are_cut(size: int) -> None:
    text, client, frames = "é" * (size // 2) + "x" * (size % 2), _client(), Frames(2**20)
    sent = client.send(TextMessage(text)) + client.send(Ping(b"p")) + client.send(TextMessage("b"))
    rng, found, at = random.Random(size), [], 0
    while at < len(sent):
        step = rng.choice((1, 2, 7, 5000, 10**6))
        found += list(frames.feed(sent[at : at + step]))
        at += step
    assert _texts(found) == [text, "b"]
    assert [one for one in found if one.opcode is Opcode.PING] == [Frame(Opcode.PING, b"p")]


def test_fragments_are_one_message_with_control_frames_between() -> None:
    client, frames = _client(), Frames(100)
    sent = client.send(TextMessage("ti", message_finished=False))
    sent += client.send(Ping(b"")) + client.send(TextMessage("de", message_finished=True))
    found = list(frames.feed(sent))
    assert found == [Frame(Opcode.PING, b""), Frame(Opcode.TEXT, b"tide")]


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_what_the_server_sends_is_read_by_a_client(size: int) -> None:
    client = _client()
    client.receive_data(frame(Opcode.TEXT, b"a" * size))
    (event,) = list(client.events())
    assert isinstance(event, TextMessage) and event.data == "a" * size


def _masked(first: int, second: int, rest: bytes = b"\0\0\0\0") -> bytes:
    return bytes((first, second)) + rest


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (_masked(0x81, 0x01, b"a"), Code.PROTOCOL),  # not masked
        (_masked(0xC1, 0x80), Code.PROTOCOL),  # a reserved bit
        (_masked(0x83, 0x80), Code.PROTOCOL),  # an unknown kind
        (_masked(0x80, 0x80), Code.PROTOCOL),  # continues nothing
        (_masked(0x01, 0x80) + _masked(0x81, 0x80), Code.PROTOCOL),  # a message in a message
        (_masked(0x09, 0x80), Code.PROTOCOL),  # a ping in fragments
        (_masked(0x89, 0xFE, b"\0\x7e" + b"\0" * 130), Code.PROTOCOL),  # a long ping
        (_masked(0x81, 0xFF, b"\xff" * 8), Code.TOO_LARGE),
        (_masked(0x01, 0x80) + _masked(0x00, 0x80) * 200, Code.TOO_LARGE),  # empty fragments
    ],
)
def test_violations(data: bytes, code: Code) -> None:
    with pytest.raises(Violation) as caught:
        list(Frames(100).feed(data))
    assert caught.value.code is code


def test_a_large_message_is_refused_before_it_has_arrived() -> None:
    sent = _client().send(BytesMessage(b"a" * 1000))
    with pytest.raises(Violation, match="more than 100 bytes"):
        list(Frames(100).feed(sent[:14]))


HANDSHAKE = {
    "host": "127.0.0.1:1",
    "upgrade": "WebSocket",
    "connection": "keep-alive, Upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def test_the_handshake_of_the_rfc() -> None:
    found = dict(accept_headers(MutableHeaders(HANDSHAKE).raw))
    assert found[b"sec-websocket-accept"] == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"upgrade": "h2c"}, 426),
        ({"sec-websocket-version": "8"}, 426),
        ({"sec-websocket-key": "short"}, 400),
        ({"sec-websocket-key": "c2hvcnQ="}, 400),
        ({"origin": "https://evil.example"}, 403),
    ],
)
def test_what_is_no_handshake(change: dict[str, str], status: int) -> None:
    with pytest.raises(Rejection) as caught:
        accept_headers(MutableHeaders({**HANDSHAKE, **change}).raw)
    assert caught.value.problem.status == status
    same = {**HANDSHAKE, "origin": "http://127.0.0.1:1"}
    assert accept_headers(MutableHeaders(same).raw)
