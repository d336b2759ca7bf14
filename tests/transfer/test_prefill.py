"""Prompts that a peer computes for an engine, over real sockets: blocks arrive while others are
computed; whatever the peer does, it costs time and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from zlib import crc32

import pytest

from tidemill.contract.moves import Name, PeerLoad, PrefillPrompt, RemotePrefill
from tidemill.transfer import peers as peers_module
from tidemill.transfer.link import Link, LinkError, Role, key_of
from tidemill.transfer.listener import Listener
from tidemill.transfer.messages import Announce, Block, Get, Open, Opened
from tidemill.transfer.peers import Fetch, Peers
from tidemill.transfer.record import header
from tidemill.transfer.serving import BlockServer

KEY = key_of("a secret of these tests")
MODEL = b"m" * 32
SIZE = 4096
COUNT = 12


def name_of(number: int) -> Name:
    return (number.to_bytes(16, "little"), b"p" * 16, b"%08d" % number, ())


def data_of(number: int) -> bytearray:
    return bytearray(number.to_bytes(4, "little") * (SIZE // 4))


NAMES = tuple(map(name_of, range(COUNT)))


def prompt(first: int) -> PrefillPrompt:
    return PrefillPrompt(NAMES[:first], "salt", "tenant", 1.0, 0, False)


def eventually(test: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not test():
        assert time.monotonic() < until
        time.sleep(0.005)


class Computed:
    """A prompt that a test computes block by block; see `transfer.serving.Prefill`."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.ended = False
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Engine:
    """See `transfer.serving.Prefills`."""

    def __init__(self) -> None:
        self.begun: list[Computed] = []
        self.asked: list[tuple[tuple[Name, ...], PrefillPrompt]] = []
        self.refuses = False

    def load(self) -> PeerLoad:
        return PeerLoad(0.5, 0.1, 2)

    def begin(
        self, names: tuple[Name, ...], prompt: PrefillPrompt, wake: Callable[[], None]
    ) -> Computed | None:
        self.asked.append((names, prompt))
        if self.refuses:
            return None
        self.begun.append(Computed(wake))
        return self.begun[-1]


@contextmanager
def pair() -> Iterator[tuple[Engine, BlockServer, Peers]]:
    """An engine that computes prompts, its blocks' server, and who asks."""
    engine = Engine()

    def bring(names: tuple[Name, ...]) -> None:
        for name in names:
            there = server.announced.has(name[0])
            server.outbox.put(name[0], data_of(int(name[2])) if there else None)

    server = BlockServer(MODEL, SIZE, crc32, bring)
    server.prefills = engine
    listener = Listener("127.0.0.1:0", KEY, server.serve)
    found = Peers([listener.address], KEY, MODEL, SIZE, crc32, lambda: None)
    try:
        eventually(lambda: bool(found.loads()))
        yield engine, server, found
    finally:
        found.close()
        listener.close()
        server.close()


def begin(found: Peers, first: int = 0, seconds: float = 20.0) -> Fetch:
    address = found.all[0].address
    fetch = found.prefill(NAMES[first:], RemotePrefill(prompt(first), address, seconds))
    assert fetch is not None
    return fetch


def take(fetch: Fetch) -> bytearray | None:
    eventually(lambda: fetch.ready)
    data = fetch.take()
    return None if data is None else bytearray(data)


def test_blocks_arrive_while_others_are_computed() -> None:
    with pair() as (engine, server, found):
        assert found.loads() == [(found.all[0].address, PeerLoad(0.5, 0.1, 2))]
        server.announced.note(NAMES[2][0], there=True)  # it has this one already
        fetch = begin(found, 2)
        assert take(fetch) == data_of(2) and not fetch.waited
        assert engine.asked == [(NAMES, prompt(2))]
        for number in range(3, COUNT):
            time.sleep(0.002)
            server.announced.note(NAMES[number][0], there=True)
            assert take(fetch) == data_of(number)
        assert fetch.complete
        eventually(lambda: engine.begun[0].cancelled)
        eventually(lambda: server.outbox.held_bytes == 0)


def test_a_prompt_may_take_longer_than_a_block_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "BLOCK_SECONDS", 1.4)  # it says that it is there each second
    with pair() as (_, server, found):
        fetch = begin(found, COUNT - 1)
        time.sleep(2.5)
        assert not fetch.ended
        server.announced.note(NAMES[-1][0], there=True)
        assert take(fetch) == data_of(COUNT - 1) and fetch.waited


def test_a_prompt_that_ends_early_gives_what_there_is() -> None:
    with pair() as (engine, server, found):
        fetch = begin(found)
        eventually(lambda: bool(engine.begun))
        for number in range(3):
            server.announced.note(NAMES[number][0], there=True)
        engine.begun[0].ended = True
        server.announced.wake()
        assert [take(fetch) for _ in range(3)] == [data_of(number) for number in range(3)]
        assert take(fetch) is None and not fetch.complete
        assert found.loads() == []  # not at once again


def test_what_is_refused_is_computed_here() -> None:
    with pair() as (engine, _, found):
        engine.refuses = True
        fetch = begin(found)
        assert take(fetch) is None
        assert found.loads() == []


def test_nobody_waits_for_a_prompt_that_takes_too_long() -> None:
    with pair() as (engine, server, found):
        fetch = begin(found, seconds=0.3)
        eventually(lambda: bool(engine.begun))
        server.announced.note(NAMES[0][0], there=True)
        assert take(fetch) == data_of(0)
        assert take(fetch) is None
        eventually(lambda: engine.begun[0].cancelled)
        assert found.loads() == []


def test_a_prompt_that_nobody_waits_for_is_cancelled() -> None:
    with pair() as (engine, _, found):
        fetch = begin(found)
        eventually(lambda: bool(engine.begun))
        fetch.cancel()
        eventually(lambda: engine.begun[0].cancelled)
        assert found.loads()  # it has done nothing wrong


def test_prompts_and_blocks_do_not_wait_for_each_other() -> None:
    with pair() as (engine, server, found):
        several = [begin(found) for _ in range(3)]
        eventually(lambda: len(engine.begun) == 3)
        other = name_of(99)
        server.announced.note(other[0], there=True)
        eventually(lambda: found.has(other[0]))
        fetch = found.fetch([other])
        assert fetch is not None and take(fetch) == data_of(99)
        for one in several:
            one.cancel()


def _flipped(link: Link) -> None:
    data = data_of(0)
    head = header(MODEL, NAMES[0], SIZE, crc32(data))
    data[7] ^= 1
    link.send(Block(head), (data,))


def _of_another_text(link: Link) -> None:
    link.send(Block(header(MODEL, NAMES[1], SIZE, crc32(data_of(1)))), (data_of(1),))


def _gone(link: Link) -> None:
    link.send(Block(later=True))
    link.close()


def _silent(link: Link) -> None:
    time.sleep(1.0)


@pytest.mark.parametrize("answer", [_flipped, _of_another_text, _gone, _silent])
def test_a_lying_dead_or_silent_peer_costs_time_and_nothing_else(
    answer: Callable[[Link], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "BLOCK_SECONDS", 0.3)

    def serve(link: Link) -> None:
        try:
            link.receive(Open)
            link.send(Opened())
            if link.role is Role.WATCH:
                link.send(Announce(load=PeerLoad()))
                link.set_timeout(None)
                link.receive(Get)
            link.receive(Get)
            answer(link)
        except (LinkError, OSError):
            link.close()

    threads = []

    def on_link(link: Link) -> None:
        threads.append(threading.Thread(target=serve, args=(link,), daemon=True))
        threads[-1].start()

    listener = Listener("127.0.0.1:0", KEY, on_link)
    found = Peers([listener.address], KEY, MODEL, SIZE, crc32, lambda: None)
    try:
        eventually(lambda: bool(found.loads()))
        assert take(begin(found)) is None
        assert found.damaged == (answer in (_flipped, _of_another_text))
        assert found.loads() == []
    finally:
        found.close()
        listener.close()
