"""Blocks from a peer over the loopback interface, beside a plain socket and a copy in memory.

Two processes; the sender has its blocks in memory. `python -m benchmarks.kv_peers [MIB_PER_BLOCK]`
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import time
from hashlib import blake2b
from multiprocessing.connection import Connection
from statistics import median

import numpy as np

from tidemill.backends.native.backend import _core
from tidemill.contract.moves import Name
from tidemill.transfer.link import key_of
from tidemill.transfer.listener import Listener
from tidemill.transfer.peers import Peers
from tidemill.transfer.serving import BlockServer

KEY = key_of("a key of this benchmark")
MODEL = b"m" * 32
TOTAL = 1 << 30
ROUNDS = 5


def name_of(number: int) -> Name:
    return blake2b(b"%d" % number, digest_size=16).digest(), b"p" * 16, b"t" * 128, ()


def _checksum(data: bytearray) -> int:
    return int(_core.checksum(np.frombuffer(data, np.uint8), 1))


def _send(pipe: Connection, size: int) -> None:
    """The sender: its blocks as an engine's mover copies them, and the same bytes on a socket."""
    block = np.random.default_rng(0).integers(0, 256, size, np.uint8)

    def bring(names: tuple[Name, ...]) -> None:
        for name in names:
            copy = server.outbox.buffer()
            copy[:] = block.data
            server.outbox.put(name[0], copy)

    server = BlockServer(MODEL, size, _checksum, bring)
    for number in range(TOTAL // size):
        server.announced.note(name_of(number)[0], there=True)
    listener = Listener("127.0.0.1:0", KEY, server.serve)
    plain = socket.create_server(("127.0.0.1", 0))
    pipe.send((listener.address, plain.getsockname()))
    data = bytes(block.data)
    while True:
        found, _ = plain.accept()
        with found:
            for _ in range(TOTAL // size):
                found.sendall(data)


def _plain(address: tuple[str, int], size: int) -> float:
    out = bytearray(size)
    begun = time.perf_counter()
    with socket.create_connection(address) as found:
        for _ in range(TOTAL // size):
            rest = memoryview(out)
            while rest:
                rest = rest[found.recv_into(rest) :]
    return time.perf_counter() - begun


def _fetched(peers: Peers, size: int) -> float:
    out = np.empty(size, np.uint8)
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
        out[:] = np.frombuffer(data, np.uint8)  # into the cache
    return time.perf_counter() - begun


def _copied(size: int) -> float:
    one, other = np.ones(size, np.uint8), np.empty(size, np.uint8)
    begun = time.perf_counter()
    for _ in range(TOTAL // size):
        other[:] = one
    return time.perf_counter() - begun


WAKE = multiprocessing.Semaphore(0)


def main(mib: float = 3.5) -> None:
    """Print gigabytes per second, the median of some rounds that alternate."""
    size = int(mib * 2**20)
    ours, theirs = multiprocessing.Pipe()
    sender = multiprocessing.Process(target=_send, args=(theirs, size), daemon=True)
    sender.start()
    address, plain = ours.recv()
    peers = Peers([address], KEY, MODEL, size, _checksum, WAKE.release)
    found: dict[str, list[float]] = {"peer": [], "socket": [], "memory": []}
    for _ in range(ROUNDS):
        found["peer"].append(_fetched(peers, size))
        found["socket"].append(_plain(plain, size))
        found["memory"].append(_copied(size))
    peers.close()
    sender.kill()
    total = TOTAL // size * size / 1e9
    rates = {name: round(total / median(seconds), 2) for name, seconds in found.items()}
    print(json.dumps({"block_mib": mib, "gigabytes_per_second": rates}))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
