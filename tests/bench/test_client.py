"""The HTTP client: ways in which a response ends, and connections that are used again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidemill.bench.client import Client, HttpFailure, Target

EVENT = b'data: {"a": 1}\n\n'


def chunked(*parts: bytes) -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed


async def with_server(
    answers: list[tuple[bytes, bool]], use: Callable[[Client], Awaitable[None]]
) -> int:
    """Serve one answer per request; True closes the connection after it. Returns connections."""
    waiting, connections = iter(answers), 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            answer, close = next(waiting)
            writer.write(answer)
            await writer.drain()
            if close:
                break
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client(Target.parse(f"http://127.0.0.1:{port}", None))
    try:
        await use(client)
    finally:
        client.close()
        server.close()
        await server.wait_closed()
    return connections


async def events(client: Client, framing: str = "sse") -> list[bytes]:
    return [e async for _, found in client.events("/x", b"{}", framing) for e in found]


async def test_a_response_without_a_length_ends_with_its_connection() -> None:
    async def use(client: Client) -> None:
        assert await events(client) == [b'{"a": 1}', b"[DONE]"]

    plain = b"HTTP/1.1 200 OK\r\n\r\n" + EVENT + b"data: [DONE]\n\n"
    assert await with_server([(plain, True)], use) == 1


async def test_a_response_that_is_cut_is_an_error() -> None:
    async def use(client: Client) -> None:
        with pytest.raises(OSError, match="within its response"):
            await events(client)

    await with_server([(chunked(EVENT), True)], use)


async def test_events_may_be_cut_anywhere() -> None:
    async def use(client: Client) -> None:
        assert await events(client) == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']

    parts = [b'data: {"a"', b": 1}\r", b'\n\r\nevent: x\ndata: {"b": 2}\n', b'\ndata: {"c": 3}\n\n']
    await with_server([(chunked(*parts, b""), False)], use)


async def test_lines() -> None:
    async def use(client: Client) -> None:
        assert await events(client, "lines") == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']

    await with_server([(chunked(b'{"a": 1}\n{"b"', b': 2}\n{"c": 3}', b""), False)], use)


async def test_connections_are_used_again_also_after_one_was_closed() -> None:
    async def use(client: Client) -> None:
        for _ in range(4):
            assert await events(client) == [b'{"a": 1}']
            await asyncio.sleep(0.01)

    end = chunked(EVENT, b"")
    answers = [(end, False), (end, True), (end, False), (end, False)]
    assert await with_server(answers, use) == 2


async def test_a_failure_carries_what_the_server_said() -> None:
    async def use(client: Client) -> None:
        with pytest.raises(HttpFailure, match="HTTP 503: too busy"):
            await events(client)
        assert await client.json("/y") == {"ok": True}

    failure = b"HTTP/1.1 503 Busy\r\nContent-Length: 8\r\n\r\ntoo busy"
    fine = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"ok": true}'
    assert await with_server([(failure, False), (fine, False)], use) == 1


async def test_what_is_no_http_is_an_error() -> None:
    async def use(client: Client) -> None:
        with pytest.raises(OSError, match="HTTP"):
            await events(client)

    await with_server([(b"+OK ready\r\n", True)], use)
