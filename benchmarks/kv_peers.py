"""Blocks from a peer in shared memory and over the loopback interface, beside a plain socket and a
copy in memory.

Two processes; the sender has its blocks in memory. Beside the rates it prints the processor time of
both processes, which says more where other work shares the cores.
`python -m benchmarks.kv_peers [MIB_PER_BLOCK]`
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from itertools import count
from multiprocessing.connection import Connection
from statistics import median

import numpy as np
import psutil
from numpy.typing import NDArray

from tidemill.backends.native.backend import _core
from tidemill.contract.moves import Name
from tidemill.transfer.link import key_of
from tidemill.transfer.listener import Listener
from tidemill.transfer.peers import Peers
from tidemill.transfer.serving import BlockServer

KEY = key_of("a key of this benchmark")
MODEL = b"m" * 32
TOTAL = 1 << 30
SPAN = 1 << 28
"""Bytes of different blocks on either side, which no processor's cache holds, as of a KV cache."""

ROUNDS = 5


def name_of(number: int) -> Name:
    return blake2b(b"%d" % number, digest_size=16).digest(), b"p" * 16, b"t" * 128, ()


def _checksum(data: bytearray | memoryview) -> int:
    return int(_core.checksum(np.frombuffer(data, np.uint8), 1))


def _send(pipe: Connection, size: int) -> None:
    """The sender: its blocks as an engine's mover copies them, and the same bytes on a socket."""
    blocks = np.random.default_rng(0).integers(0, 256, (SPAN // size, size), np.uint8)
    turns = count()

    def copied(server: BlockServer, names: tuple[Name, ...]) -> None:
        for name in names:
            copy = server.outbox.buffer()
            np.frombuffer(copy, np.uint8)[:] = blocks[next(turns) % len(blocks)]
            server.outbox.put(name[0], copy)

    def bring(names: tuple[Name, ...]) -> None:
        copied(server, names)

    def bring_shared(names: tuple[Name, ...]) -> None:
        copied(other, names)

    server = BlockServer(MODEL, size, _checksum, bring)
    for number in range(TOTAL // size):
        server.announced.note(name_of(number)[0], there=True)
    listener = Listener("127.0.0.1:0", KEY, server.serve)
    plain = socket.create_server(("127.0.0.1", 0))
    other = BlockServer(MODEL, size, _checksum, bring_shared)
    for number in range(TOTAL // size):
        other.announced.note(name_of(number)[0], there=True)
    shared = Listener("127.0.0.1:0", KEY, other.serve)
    other.local = shared.local
    pipe.send((listener.address, shared.address, plain.getsockname()))
    while True:
        found, _ = plain.accept()
        with found:
            for i in range(TOTAL // size):
                found.sendall(blocks[i % len(blocks)].data)


@cache
def _written(size: int, which: int = 0) -> NDArray[np.uint8]:
    """Memory that is there already."""
    return np.full((SPAN // size, size), which + 1, np.uint8)


def _plain(address: tuple[str, int], size: int) -> float:
    out = _written(size)
    begun = time.perf_counter()
    with socket.create_connection(address) as found:
        for i in range(TOTAL // size):
            rest = out[i % len(out)].data
            while rest:
                rest = rest[found.recv_into(rest) :]
    return time.perf_counter() - begun


def _fetched(peers: Peers, size: int) -> float:
    out = _written(size)
    names = [name_of(number) for number in range(TOTAL // size)]
    while not all(peers.has(name[0]) for name in names):
        time.sleep(0.01)
    begun = time.perf_counter()
    fetch = None
    for at in range(len(names)):
        if fetch is None or fetch.complete:
            fetch = peers.fetch(names[at:])
            assert fetch is not None
        while not fetch.ready:
            WAKE.acquire()
        data = fetch.take()
        assert data is not None
        out[at % len(out)] = np.frombuffer(data, np.uint8)  # into the cache
        assert fetch.confirm()
        fetch.give_back()
    return time.perf_counter() - begun


def _copied(size: int) -> float:
    one, other = _written(size, 1), _written(size)
    begun = time.perf_counter()
    for i in range(TOTAL // size):
        other[i % len(other)] = one[i % len(one)]
    return time.perf_counter() - begun


WAKE = multiprocessing.Semaphore(0)


def main(mib: float = 3.5) -> None:
    """Print gigabytes per second, the median of some rounds that alternate."""
    size = int(mib * 2**20)
    ours, theirs = multiprocessing.Pipe()
    sender = multiprocessing.Process(target=_send, args=(theirs, size), daemon=True)
    sender.start()
    address, shared, plain = ours.recv()
    tcp = Peers([address], KEY, MODEL, size, _checksum, WAKE.release)
    memory = Peers([shared], KEY, MODEL, size, _checksum, WAKE.release)
    found: dict[str, list[tuple[float, float]]] = {}
    ways: dict[str, Callable[[], float]] = {
        "shared": lambda: _fetched(memory, size),
        "peer": lambda: _fetched(tcp, size),
        "socket": lambda: _plain(plain, size),
        "memory": lambda: _copied(size),
    }
    _copied(size)
    processes = [psutil.Process(), psutil.Process(sender.pid)]
    for _ in range(ROUNDS):
        for name, way in ways.items():
            before = sum(sum(one.cpu_times()[:2]) for one in processes)
            seconds = way()
            busy = sum(sum(one.cpu_times()[:2]) for one in processes) - before
            found.setdefault(name, []).append((seconds, busy))
    for peers in (tcp, memory):
        peers.close()
    sender.kill()
    total = TOTAL // size * size / 1e9
    rates = {name: round(total / median(s for s, _ in one), 2) for name, one in found.items()}
    spent = {name: round(median(b for _, b in one) / total, 3) for name, one in found.items()}
    shown = {"gigabytes_per_second": rates, "processor_seconds_per_gigabyte": spent}
    print(json.dumps({"block_mib": mib, **shown}))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
