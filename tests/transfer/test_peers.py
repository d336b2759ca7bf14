"""Blocks over real sockets: what arrives is what was asked for, or nothing, whatever the other side
does; and nothing is left behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from zlib import crc32

import pytest

from tidemill.contract.moves import Name
from tidemill.transfer import peers as peers_module
from tidemill.transfer import serving as serving_module
from tidemill.transfer.arena import AVAILABLE
from tidemill.transfer.link import Link, LinkError, Role, accept, connect, key_of
from tidemill.transfer.listener import Listener
from tidemill.transfer.messages import Announce, Block, Get, Open, Opened
from tidemill.transfer.peers import Fetch, Peers
from tidemill.transfer.record import header
from tidemill.transfer.serving import BlockServer

KEY = key_of("a secret of these tests")
OTHER = key_of("another secret of them")
MODEL = b"m" * 32
SIZE = 4096
SHARES = [False, True] if AVAILABLE else [False]


def name_of(number: int) -> Name:
    return (blake2b(b"%d" % number, digest_size=16).digest(), b"p" * 16, b"%08d" % number, ())


def data_of(number: int) -> bytearray:
    return bytearray(blake2b(b"%d" % number).digest() * (SIZE // 64))


def eventually(test: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not test():
        assert time.monotonic() < until
        time.sleep(0.005)


def all_of(fetch: Fetch) -> list[bytearray]:
    found = []
    for _ in fetch.names:
        eventually(lambda: fetch.ready)
        data = fetch.take()
        if data is None:
            break
        found.append(bytearray(data))
    return found


@contextmanager
def peers(*addresses: str, key: bytes = KEY, model: bytes = MODEL) -> Iterator[Peers]:
    opened = Peers(addresses, key, model, SIZE, crc32, lambda: None)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def serving(count: int, *, shares: bool = False) -> Iterator[tuple[BlockServer, str]]:
    """An engine with `count` blocks, which come into the outbox at once."""

    def bring(names: tuple[Name, ...]) -> None:
        for name in names:
            if int(name[2]) < count:
                copy = server.outbox.buffer()
                copy[:] = data_of(int(name[2]))
                server.outbox.put(name[0], copy)
            else:
                server.outbox.put(name[0], None)

    server = BlockServer(MODEL, SIZE, crc32, bring)
    listener = Listener("127.0.0.1:0", KEY, server.serve)
    server.local = listener.local if shares else ""
    for number in range(count):
        server.announced.note(name_of(number)[0], there=True)
    try:
        yield server, listener.address
    finally:
        listener.close()
        server.close()


@pytest.mark.parametrize("shares", SHARES)
def test_blocks_arrive_in_their_order(*, shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "LENT_BYTES", 5 * SIZE)
    names = [name_of(i) for i in range(700)]
    with serving(700, shares=shares) as (server, address), peers(address) as found:
        eventually(lambda: all(found.has(name[0]) for name in names))
        fetch = found.fetch(names)
        assert fetch is not None
        assert all_of(fetch) == [data_of(i) for i in range(700)]
        fetch.cancel()
        eventually(lambda: server.outbox.held_bytes == 0)


def test_what_is_evicted_is_not_known_any_more() -> None:
    with serving(3) as (server, address), peers(address) as found:
        eventually(lambda: found.has(name_of(2)[0]))
        server.announced.note(name_of(2)[0], there=False)
        eventually(lambda: not found.has(name_of(2)[0]))
        assert found.has(name_of(1)[0])


@pytest.mark.parametrize("shares", SHARES)
def test_a_block_that_is_gone_ends_a_fetch(*, shares: bool) -> None:
    with serving(3, shares=shares) as (server, address), peers(address) as found:
        server.announced.note(name_of(5)[0], there=True)  # it is not there
        eventually(lambda: found.has(name_of(5)[0]))
        fetch = found.fetch([name_of(1), name_of(5), name_of(2)])
        assert fetch is not None and all_of(fetch) == [data_of(1)]
        fetch = found.fetch([name_of(2)])
        assert fetch is not None and all_of(fetch) == [data_of(2)]


@pytest.mark.parametrize("shares", SHARES)
def test_a_fetch_that_is_cancelled_leaves_nothing(
    *, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "WINDOW_BYTES", 2 * SIZE)
    with serving(700, shares=shares) as (server, address), peers(address) as found:
        eventually(lambda: found.has(name_of(699)[0]))
        fetch = found.fetch([name_of(i) for i in range(700)])
        assert fetch is not None
        eventually(lambda: fetch.ready)
        fetch.cancel()
        eventually(lambda: server.outbox.held_bytes == 0)
        fetch = found.fetch([name_of(9)])
        assert fetch is not None and all_of(fetch) == [data_of(9)]


@pytest.mark.parametrize(("key", "model"), [(OTHER, MODEL), (KEY, b"o" * 32)])
def test_nothing_comes_of_engines_with_another_key_or_model(key: bytes, model: bytes) -> None:
    with serving(3) as (_, address), peers(address, key=key, model=model) as found:
        time.sleep(0.5)
        assert not found.has(name_of(1)[0])
        assert found.fetch([name_of(1)]) is None


class Hostile:
    """A peer that knows the key, says that it has everything asked for here, and answers a `Get` as
    `answer` does."""

    def __init__(self, answer: Callable[[Link, Get], None]) -> None:
        self.answer = answer
        self.listener = Listener("127.0.0.1:0", KEY, self.serve)

    def serve(self, link: Link) -> None:
        try:
            link.receive(Open)
            link.send(Opened())
            if link.role is Role.WATCH:
                link.send(Announce(tuple(name_of(i)[0] for i in range(4))))
                link.set_timeout(None)
            while True:
                self.answer(link, link.receive(Get))
        except (LinkError, OSError):
            link.close()


def _send(link: Link, head: bytes, data: bytes) -> None:
    link.send(Block(head), (data,))


def _good(link: Link, number: int) -> None:
    data = data_of(number)
    _send(link, header(MODEL, name_of(number), SIZE, crc32(data)), data)


def flipped(link: Link, get: Get) -> None:
    _good(link, 0)
    data = data_of(1)
    data[99] ^= 1
    _send(link, header(MODEL, name_of(1), SIZE, crc32(data_of(1))), data)


def of_another_text(link: Link, get: Get) -> None:
    _good(link, 0)
    _good(link, 2)


def of_another_model(link: Link, get: Get) -> None:
    _good(link, 0)
    _send(link, header(b"o" * 32, name_of(1), SIZE, crc32(data_of(1))), data_of(1))


def of_another_size(link: Link, get: Get) -> None:
    _good(link, 0)
    _send(link, header(MODEL, name_of(1), 2 * SIZE, crc32(data_of(1))), data_of(1))


def cut(link: Link, get: Get) -> None:
    _good(link, 0)
    link.send(Block(header(MODEL, name_of(1), SIZE, crc32(data_of(1)))), (data_of(1)[:99],))
    link.close()


def garbage(link: Link, get: Get) -> None:
    _good(link, 0)
    raw = link.detach()
    raw.setblocking(True)
    raw.sendall(b"\x00\x01\x00\x00" + b"x" * 300)


def silent(link: Link, get: Get) -> None:
    _good(link, 0)
    time.sleep(1.0)


DAMAGED = {flipped, of_another_text, of_another_model, of_another_size}


@pytest.mark.parametrize(
    "answer", [flipped, of_another_text, of_another_model, of_another_size, cut, garbage, silent]
)
def test_a_lying_dead_or_silent_peer_costs_time_and_nothing_else(
    answer: Callable[[Link, Get], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "BLOCK_SECONDS", 0.3)
    hostile = Hostile(answer)
    try:
        with peers(hostile.listener.address) as found:
            eventually(lambda: found.has(name_of(1)[0]))
            fetch = found.fetch([name_of(0), name_of(1), name_of(2)])
            assert fetch is not None
            assert all_of(fetch) == [data_of(0)]
            assert found.damaged == (answer in DAMAGED)
            assert found.has(name_of(1)[0]) is (answer not in DAMAGED)
    finally:
        hostile.listener.close()


def test_who_does_not_know_the_key_learns_nothing() -> None:
    with serving(1) as (_, address):
        host, port = address.split(":")
        for said in (b"GET / HTTP/1.1\r\n\r\n" + b" " * 100, b"\0" * 200):
            with socket.create_connection((host, int(port)), 10) as found:
                found.sendall(said)
                found.settimeout(10)
                got = b""
                try:
                    while part := found.recv(1000):
                        got += part
                except OSError:
                    pass
                assert len(got) <= 56  # its hello: a random number
        with pytest.raises((LinkError, OSError)):
            connect(address, OTHER, Role.FETCH)


def test_messages_between_cannot_be_changed() -> None:
    one, middle = socket.socketpair(), socket.socketpair()
    proven = 56 + 16  # a random number and a proof

    def pass_on(source: socket.socket, target: socket.socket, *, change: int) -> None:
        at = 0
        with source, target:
            while data := bytearray(source.recv(1000)):
                if at <= change < at + len(data):
                    data[change - at] ^= 1
                at += len(data)
                target.sendall(data)

    ways = [(one[1], middle[0], proven + 30), (middle[0], one[1], -1)]
    for source, target, change in ways:
        threading.Thread(
            target=pass_on, args=(source, target), kwargs={"change": change}, daemon=True
        ).start()
    sides: list[Link] = []
    thread = threading.Thread(target=lambda: sides.append(accept(middle[1], KEY)))
    thread.start()
    opener = Link(one[0], KEY, Role.FETCH)
    thread.join()
    opener.send(Open(MODEL, 1))
    with pytest.raises(LinkError):
        sides[0].receive(Open)
    for link in (opener, *sides):
        link.close()
