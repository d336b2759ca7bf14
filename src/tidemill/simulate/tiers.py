"""SimulatedMover: KV blocks below the device, and those of other engines, in simulated time.

What is saved, and what is brought rather than computed, the scheduler's own `Tiers` and `Bringing`
decide. This says how long it takes: one block after another, loads before saves, as the worker's
mover does it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tidemill.contract.moves import (
    BlockMoves,
    LoadBlocks,
    LoadDone,
    MoveReport,
    SaveBlock,
    Tier,
    TierTraffic,
)
from tidemill.memory.tiers import LOAD_SECONDS, PEER_SECONDS
from tidemill.simulate.timeline import Timeline

REPORT_SAVES = 64  # ended saves are reported together

BANDWIDTH: Mapping[Tier, float] = {Tier.RAM: 2e9, Tier.DISK: 5e8, Tier.PEER: 7e8}
"""Bytes per second where nobody says otherwise: about what docs/kv-tiers.md and docs/kv-transfer.md
have measured on two cores."""


@dataclass(frozen=True, slots=True)
class TierSizes:
    """What lies below the device.

    Attributes:
        ram, disk: bytes of each tier; 0: there is none.
        peers: engines bring blocks from one another.
        bandwidth: bytes per second by tier.
    """

    ram: int = 0
    disk: int = 0
    peers: bool = False
    bandwidth: Mapping[Tier, float] = field(default_factory=lambda: BANDWIDTH)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those there are, the nearest first."""
        there = ((Tier.RAM, self.ram), (Tier.DISK, self.disk), (Tier.PEER, self.peers))
        return tuple(tier for tier, size in there if size)


class Directory:
    """Which engines have a block: told at once, where real ones tell every 50 ms."""

    def __init__(self) -> None:
        self._holders: dict[bytes, dict[int, None]] = {}

    def note(self, engine: int, digest: bytes, there: bool) -> None:
        """An engine has a block from now on, or no more."""
        if there:
            self._holders.setdefault(digest, {})[engine] = None
        elif (held := self._holders.get(digest)) is not None:
            held.pop(engine, None)
            if not held:
                del self._holders[digest]

    def has(self, digest: bytes, but: int) -> bool:
        """Another engine has it."""
        held = self._holders.get(digest)
        return held is not None and (len(held) > 1 or but not in held)

    def forget(self, engine: int) -> None:
        """An engine is gone."""
        for digest in [digest for digest, held in self._holders.items() if engine in held]:
            self.note(engine, digest, False)


@dataclass(slots=True, eq=False)
class _Load:
    what: LoadBlocks
    count: int = 0
    asked: bool = False  # a peer, which had a block ready when it was asked last
    traffic: dict[Tier, list[float]] = field(default_factory=dict)


class _Held:
    """Blocks of a tier, by digest, the least recently used first."""

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._held

    def use(self, digest: bytes) -> None:
        """It is read."""
        self._held.move_to_end(digest)

    def save(self, digest: bytes) -> None:
        """It is written."""
        if not self._most:
            return
        self._held[digest] = None
        self._held.move_to_end(digest)
        if len(self._held) > self._most:
            self._held.popitem(last=False)


class SimulatedMover:
    """The part of an executor that moves blocks.

    Args:
        timeline: its time.
        sizes: of the tiers.
        block_bytes: of a block over all cache groups.
        report: is given what has ended.
        directory: who has which blocks, where engines bring them from one another.
        number: of this engine there.
    """

    def __init__(
        self,
        timeline: Timeline,
        sizes: TierSizes,
        block_bytes: int,
        report: Callable[[MoveReport], None],
        directory: Directory,
        number: int,
    ) -> None:
        self._timeline = timeline
        self._report = report
        self._directory = directory if sizes.peers else None
        self._number = number
        self._block_bytes = block_bytes
        self._seconds = {tier: block_bytes / sizes.bandwidth[tier] for tier in sizes.tiers}
        self._held = {
            tier: _Held(size // block_bytes)
            for tier, size in ((Tier.RAM, sizes.ram), (Tier.DISK, sizes.disk))
            if size
        }
        self._deferred: deque[tuple[int, tuple[LoadBlocks, ...]]] = deque()
        self._launched: set[int] = set()  # steps in flight
        self._loads: deque[_Load] = deque()
        self._unwanted: set[int] = set()
        self._saves: dict[int, SaveBlock] = {}
        self._saving: int | None = None
        self._ended: list[int] = []
        self._busy = False

    # -- as an executor ----------------------------------------------------------------------

    def tier_of(self, digest: bytes) -> Tier | None:
        """See Executor."""
        for tier, held in self._held.items():
            if digest in held:
                return tier
        if self._directory is not None and self._directory.has(digest, self._number):
            return Tier.PEER
        return None

    def announce(self, digest: bytes, there: bool) -> None:
        """See Executor."""
        if self._directory is not None:
            self._directory.note(self._number, digest, there)

    def move(self, moves: BlockMoves) -> None:
        """See Executor."""
        for save_id in moves.cancelled_saves:
            self._saves.pop(save_id, None)
            if self._saving == save_id:
                self._saving = None
        self._unwanted.update(moves.cancelled_loads)
        self._saves.update((save.save_id, save) for save in moves.saves)
        if moves.loads:
            if moves.after is not None and any(step <= moves.after for step in self._launched):
                self._deferred.append((moves.after, moves.loads))
            else:
                self._loads.extend(map(_Load, moves.loads))
        self._begin()

    def launched(self, step: int) -> None:
        """A step is in flight."""
        self._launched.add(step)

    def landed(self, step: int) -> None:
        """A step has ended: loads that waited for it begin."""
        self._launched.discard(step)
        while self._deferred and all(n > self._deferred[0][0] for n in self._launched):
            self._loads.extend(map(_Load, self._deferred.popleft()[1]))
        self._begin()

    # -- one block after another -------------------------------------------------------------

    def _begin(self) -> None:
        if not self._busy and (self._loads or self._saves):
            self._busy = True
            wait = LOAD_SECONDS if self._loads else 0.0
            self._timeline.at(self._timeline.now + wait, self._next)

    def _next(self) -> None:
        """Move a block, or be idle."""
        now = self._timeline.now
        if self._loads:
            self._bring(self._loads.popleft())
        elif self._saves:
            save = self._saves.pop(next(iter(self._saves)))
            self._saving = save.save_id
            seconds = max(self._seconds[tier] for tier in save.tiers)
            self._timeline.at(now + seconds, partial(self._saved, save))
        else:
            self._busy = False
            self._tell()

    def _bring(self, load: _Load) -> None:
        digest = load.what.names[load.count][0]
        tier = self.tier_of(digest)
        if load.what.load_id in self._unwanted or tier is None:
            self._done(load)
        elif tier is Tier.PEER and not load.asked:
            # It waits for the peer's first block; meanwhile others get on.
            load.asked = True
            self._timeline.at(self._timeline.now + PEER_SECONDS, partial(self._asked, load))
            self._next()
        else:
            seconds = self._seconds[tier]
            self._timeline.at(self._timeline.now + seconds, partial(self._brought, load, tier))

    def _asked(self, load: _Load) -> None:
        self._loads.append(load)
        if not self._busy:
            self._busy = True
            self._next()

    def _brought(self, load: _Load, tier: Tier) -> None:
        digest = load.what.names[load.count][0]
        if self.tier_of(digest) is None:  # it left while it was read
            self._done(load)
            return
        if (held := self._held.get(tier)) is not None and digest in held:
            held.use(digest)
        taken = load.traffic.setdefault(tier, [0, 0, 0.0])
        # A peer's first block waits for the other side, which says nothing of the bandwidth.
        counted = tier is not Tier.PEER or taken[0] > 0
        taken[0] += 1
        if counted:
            taken[1] += self._block_bytes
            taken[2] += self._seconds[tier]
        load.count += 1
        if load.count < len(load.what.names):
            self._loads.append(load)
            self._next()
        else:
            self._done(load)

    def _done(self, load: _Load) -> None:
        self._unwanted.discard(load.what.load_id)
        traffic = tuple(
            TierTraffic(tier, int(blocks), int(nbytes), seconds)
            for tier, (blocks, nbytes, seconds) in load.traffic.items()
        )
        self._tell(LoadDone(load.what.load_id, load.count, traffic))
        self._next()

    def _saved(self, save: SaveBlock) -> None:
        if self._saving is not None:
            for tier in save.tiers:
                self._held[tier].save(save.name[0])
            self._saving = None
        self._ended.append(save.save_id)
        if len(self._ended) >= REPORT_SAVES:
            self._tell()
        self._next()

    def _tell(self, *loads: LoadDone) -> None:
        if loads or self._ended:
            ended, self._ended = tuple(self._ended), []
            self._report(MoveReport(loads=loads, saves=ended))
