"""Answers as they arrive, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tidemill.gateway.wire.connection import HIGH_BYTES, Lost
from tidemill.gateway.wire.pool import Address, Full, Pool

ASK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def _pool(answer: Answer, most: int = 8) -> tuple[asyncio.Server, Pool, list[int]]:
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    return server, Pool(Address("127.0.0.1", port, False, ""), most, 5.0), connections


def _says(*parts: bytes, close: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.001)
        if close:
            writer.close()

    return answer


WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX-Name: v\r\n\r\nhello"


async def test_connections_are_kept() -> None:
    server, pool, connections = await _pool(_says(b"HTTP/1.1 103 Early\r\n\r\n", WHOLE))
    for _ in range(3):
        async with pool.exchange(ASK) as connection:
            assert await connection.head() == 200
            assert (b"x-name", b"v") in connection.headers
            assert await connection.read_all(5) == b"hello"
    assert len(connections) == 1 and pool.open == 0
    server.close()


async def test_an_answer_that_is_given_up_closes_its_connection() -> None:
    server, pool, connections = await _pool(_says(WHOLE))
    for _ in range(2):
        async with pool.exchange(ASK) as connection:
            await connection.head()
            connection.abort()
    assert len(connections) == 2
    server.close()


async def test_no_more_connections_than_the_bound() -> None:
    server, pool, _ = await _pool(_says(WHOLE), most=1)
    async with pool.exchange(ASK):
        with pytest.raises(Full):
            async with pool.exchange(ASK):
                pass
    server.close()


async def test_what_was_not_sent_is_known() -> None:
    server, _, _ = await _pool(_says(WHOLE))
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    nobody = Pool(Address("127.0.0.1", port, False, ""), 8, 5.0)
    with pytest.raises(Lost, match="no connection") as caught:
        async with nobody.exchange(ASK):
            pass
    assert caught.value.unsent


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel",),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n",),
        (b"SSH-2.0\r\n",),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70000,),
    ],
)
async def test_an_answer_that_breaks_off_is_lost(parts: tuple[bytes, ...]) -> None:
    server, pool, _ = await _pool(_says(*parts, close=True))
    with pytest.raises(Lost):
        async with pool.exchange(ASK) as connection:
            await connection.head()
            await connection.read_all(1000)
    server.close()


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    server, pool, _ = await _pool(_says(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", close=True))
    async with pool.exchange(ASK) as connection:
        assert await connection.head() == 200
        assert await connection.read_all(1000) == b"hello"
    server.close()


async def test_a_whole_answer_is_bounded() -> None:
    server, pool, _ = await _pool(_says(WHOLE))
    async with pool.exchange(ASK) as connection:
        await connection.head()
        with pytest.raises(Lost, match="more than 4 bytes"):
            await connection.read_all(4)
    server.close()


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_parts_are_pushed_and_a_full_reader_is_waited_for() -> None:
    parts = (CHUNKED, b"1\r\na\r\n", b"1\r\nb\r\n", b"1\r\nc\r\n0\r\n\r\n")
    server, pool, _ = await _pool(_says(*parts))
    got, pauses = b"", 0
    async with pool.exchange(ASK) as connection:
        await connection.head()

        def push(data: bytes) -> bool:
            nonlocal got
            got += data
            return got != b"ab"

        while not await connection.push(push, 5.0):
            pauses += 1
    assert got == b"abc" and pauses == 1
    server.close()


async def test_silence_is_a_loss_and_what_push_raises_is_raised() -> None:
    server, pool, _ = await _pool(_says(CHUNKED, b"1\r\na\r\n"))
    async with pool.exchange(ASK) as connection:
        await connection.head()
        with pytest.raises(Lost, match="nothing came"):
            await connection.push(lambda data: True, 0.05)
    server.close()
    server, pool, _ = await _pool(_says(CHUNKED, b"1\r\na\r\n", b"1\r\nb\r\n"))

    def push(data: bytes) -> bool:
        raise ValueError("no")

    async with pool.exchange(ASK) as connection:
        await connection.head()
        with pytest.raises(ValueError, match="no"):
            await connection.push(push, 5.0)
    server.close()


async def test_a_slow_reader_stops_the_target() -> None:
    sent = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(CHUNKED)
        for _ in range(1000):
            writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            await writer.drain()
            sent += 1 << 16
        writer.write(b"0\r\n\r\n")

    server, pool, _ = await _pool(flood)
    async with pool.exchange(ASK) as connection:
        await connection.head()
        before = -1
        while sent != before:  # until nothing more fits into the buffers between
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 64 << 20
        total = 0
        while part := await connection.read():
            assert len(part) < HIGH_BYTES + (1 << 20)
            total += len(part)
    assert total == 1000 << 16
    server.close()


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://h", "h"),
        ("https://h/api/", "h"),
        ("http://[::1]:80", "[::1]"),
        ("https://h:80", "h:80"),
    ],
)
def test_addresses(url: str, authority: str) -> None:
    assert Address.parse(url).authority == authority
