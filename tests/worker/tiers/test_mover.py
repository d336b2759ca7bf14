"""What a load brings of several tiers at once lies where it belongs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from helpers.fake_backend import FakeBackend, tiny_spec

from tidemill.contract.moves import BlockMoves, LoadBlocks, MoveReport, Name, Tier
from tidemill.worker.tiers.mover import Mover
from tidemill.worker.tiers.ram import RamTier

NAMES: list[Name] = [(bytes([i]) * 16, b"p" * 16, b"t" * 16, ()) for i in range(4)]


class Way:
    """A peer that has all blocks; see `transfer.peers.Peers` and `Fetch`."""

    def __init__(self, data: list[bytes]) -> None:
        self.data = dict(zip(NAMES, data, strict=True))
        self.names: list[Name] = []
        self.taken = 0
        self.damaged = 0
        self.waited = self.ended = False
        self.ready = True

    def fetch(self, names: Sequence[Name]) -> Way:
        self.names, self.taken = [*names], 0
        return self

    @property
    def complete(self) -> bool:
        return self.taken == len(self.names)

    def take(self) -> bytes:
        self.taken += 1
        return self.data[self.names[self.taken - 1]]

    def confirm(self) -> bool:
        return True

    def give_back(self) -> None:
        """Nothing is shared."""

    def cancel(self) -> None:
        """Nothing is open."""

    def has(self, digest: bytes) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


def test_blocks_of_a_peer_come_in_its_order_whatever_nearer_tiers_have() -> None:
    backend = FakeBackend(tiny_spec(97, 1), 4)
    backend.allocate_cache((8,))
    [size] = backend.block_bytes()
    data = [bytes([i + 1]) * size for i in range(4)]
    ram = RamTier(8 * size)
    mover = Mover(backend, ram, None)
    mover.attach(Way(data), None)  # type: ignore[arg-type]
    ram.save(NAMES[1], np.frombuffer(data[1], np.uint8))  # the second of them is here, too
    reports: list[MoveReport] = []
    mover.report = reports.append
    mover.begin(BlockMoves(loads=(LoadBlocks(0, tuple(NAMES), ((2,), (3,), (4,), (5,))),)))
    while mover.work():
        pass
    [done] = [done for report in reports for done in report.loads]
    assert done.blocks == 4 and {one.tier for one in done.traffic} == {Tier.PEER}
    for block, want in zip((2, 3, 4, 5), data, strict=True):
        out = np.empty(size, np.uint8)
        backend.read_blocks(0, np.array([block], np.int32), out)
        assert out.tobytes() == want
