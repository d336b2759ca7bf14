"""Blocks in memory that two processes of a machine share: what is read is what was sent, or it is
known that it may not be."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from zlib import crc32

import pytest

from tidemill.contract.moves import Name
from tidemill.transfer.arena import AVAILABLE, Arena, opened
from tidemill.transfer.link import Link, LinkError, Role, key_of
from tidemill.transfer.listener import Listener
from tidemill.transfer.messages import Announce, Block, Get, Open, Opened
from tidemill.transfer.outbox import Outbox
from tidemill.transfer.peers import Fetch, Peers
from tidemill.transfer.record import header
from tidemill.transfer.serving import BlockServer

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="this system has no memory to share")

KEY = key_of("a secret of these tests")
MODEL = b"m" * 32
SIZE = 5000  # no whole number of pages


def name_of(number: int) -> Name:
    return (number.to_bytes(16, "little"), b"p" * 16, b"%08d" % number, ())


def data_of(number: int) -> bytes:
    return number.to_bytes(4, "little") * (SIZE // 4)


def eventually(test: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not test():
        assert time.monotonic() < until
        time.sleep(0.005)


@contextmanager
def pair(local: str | None = None) -> Iterator[tuple[BlockServer, Peers]]:
    def bring(names: tuple[Name, ...]) -> None:
        for name in names:
            copy = server.outbox.buffer()
            copy[:] = data_of(int(name[2]))
            server.outbox.put(name[0], copy)

    server = BlockServer(MODEL, SIZE, crc32, bring)
    for number in range(40):
        server.announced.note(name_of(number)[0], there=True)
    listener = Listener("127.0.0.1:0", KEY, server.serve)
    server.local = listener.local if local is None else local
    found = Peers([listener.address], KEY, MODEL, SIZE, crc32, lambda: None)
    try:
        eventually(lambda: found.has(name_of(39)[0]))
        yield server, found
    finally:
        found.close()
        listener.close()
        server.close()


def fetch_of(found: Peers, *numbers: int) -> Fetch:
    fetch = found.fetch([name_of(number) for number in numbers])
    assert fetch is not None
    return fetch


def take(fetch: Fetch) -> bytearray | memoryview | None:
    eventually(lambda: fetch.ready)
    return fetch.take()


def test_blocks_are_read_where_they_were_written() -> None:
    with pair() as (server, found):
        for turn in range(3):
            fetch = fetch_of(found, *range(turn, 30))
            for number in range(turn, 30):
                data = take(fetch)
                assert isinstance(data, memoryview) and data.readonly
                assert data == data_of(number) and fetch.confirm()
            fetch.cancel()
        eventually(lambda: server.outbox.held_bytes == 0)


def test_what_was_read_when_the_connection_had_ended_is_not_believed() -> None:
    with pair() as (server, found):
        fetch = fetch_of(found, *range(20))
        assert take(fetch) == data_of(0) and fetch.confirm()
        server.close()  # from now on it may write there again
        assert not fetch.confirm()
        assert take(fetch) is None
        assert found.damaged == 0  # nobody lied


def test_what_is_not_read_comes_back() -> None:
    with pair() as (server, found):
        fetch = fetch_of(found, *range(4))
        eventually(lambda: server.sent == 4)
        other = fetch_of(found, 7, 8)  # over the same connection
        eventually(lambda: server.sent == 6)
        fetch.cancel()
        assert take(other) == data_of(7)
        other.cancel()
        eventually(lambda: server.outbox.held_bytes == 0)


def test_a_fetch_that_is_cancelled_gives_back_its_own_blocks_alone() -> None:
    with pair() as (_, found):
        first = fetch_of(found, 0, 1, 2)
        eventually(lambda: first.left == 0)
        second = fetch_of(found, 3, 4, 5)  # over the same connection
        eventually(lambda: second.left == 0)
        second.cancel()
        third = fetch_of(found, 6, 7, 8)  # whose blocks are written to what the second gave back
        for fetch, numbers in ((third, (6, 7, 8)), (first, (0, 1, 2))):
            for number in numbers:
                data = take(fetch)
                assert data is not None and bytes(data) == data_of(number)
            fetch.give_back()
        assert found.damaged == 0


def test_blocks_come_otherwise_where_nothing_is_shared() -> None:
    with pair("nobody") as (_, found):
        fetch = fetch_of(found, 3)
        data = take(fetch)
        assert isinstance(data, bytearray) and data == data_of(3)


def test_memory_that_could_shrink_is_not_read() -> None:
    fd = os.memfd_create("test")
    os.ftruncate(fd, 8192)
    with pytest.raises(OSError, match="shrink"):
        opened(fd, SIZE)
    arena = Arena(SIZE, 3)
    arena.slots[2][:] = data_of(5)
    slots = opened(os.dup(arena.fd), SIZE)
    assert len(slots) == 3 and slots[2] == data_of(5)
    with pytest.raises(OSError):
        os.ftruncate(arena.fd, 0)
    arena.close()


def test_a_copy_is_written_again_once_all_have_read_it() -> None:
    outbox = Outbox(SIZE)
    assert outbox.share() is not None
    first = outbox.buffer()
    assert outbox.expect([b"a"]) == [b"a"] and outbox.expect([b"a"]) == []
    outbox.put(b"a", first)
    assert outbox.take(b"a", 0.0) is first and outbox.take(b"a", 0.0) is first
    outbox.free(first)
    assert outbox.buffer() is not first and outbox.held_bytes == SIZE
    outbox.free(first)
    assert outbox.buffer() is first and outbox.held_bytes == 0
    outbox.close()


def _beyond(link: Link, arena: Arena) -> None:
    head = header(MODEL, name_of(0), SIZE, crc32(data_of(0)))
    link.send(Block(head, slot=99))


def _changed(link: Link, arena: Arena) -> None:
    arena.slots[1][:] = data_of(1)
    link.send(Block(header(MODEL, name_of(0), SIZE, crc32(data_of(0))), slot=1))


@pytest.mark.parametrize("answer", [_beyond, _changed])
def test_a_lying_peer_costs_time_and_nothing_else(
    answer: Callable[[Link, Arena], None],
) -> None:
    arena = Arena(SIZE, 3)

    def serve(link: Link) -> None:
        try:
            link.receive(Open)
            if link.role is Role.WATCH:
                link.send(Opened(local=listener.local))
                link.send(Announce((name_of(0)[0],)))
                link.set_timeout(None)
            else:
                link.send(Opened(shares=True))
                link.send_file(arena.fd)
            link.receive(Get)
            answer(link, arena)
            link.receive(Get)
        except (LinkError, OSError):
            link.close()

    def on_link(link: Link) -> None:
        threading.Thread(target=serve, args=(link,), daemon=True).start()

    listener = Listener("127.0.0.1:0", KEY, on_link)
    found = Peers([listener.address], KEY, MODEL, SIZE, crc32, lambda: None)
    try:
        eventually(lambda: found.has(name_of(0)[0]))
        assert take(fetch_of(found, 0)) is None
        eventually(lambda: found.damaged == 1)
        assert not found.has(name_of(0)[0])
    finally:
        found.close()
        listener.close()
        arena.close()
