"""Tiers: which blocks go down when they leave the device, and which come back.

Control's side of `contract/moves.py`: the worker owns the bytes and moves them. With a disk tier,
each block is saved once it is full, so that it outlives the process. With a RAM tier those that
will be evicted next are. A save holds no block: evicting one that is still to be saved cancels
that. A load fills blocks of a lease of its own.

Of a recurrent model, the state at the end of some blocks moves as well (`state_records`): a
prompt's once it is computed, a stream's when it ends or is preempted, as each replaces the one
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from tidemill.contract.moves import (
    BlockMoves,
    LoadBlocks,
    LoadDone,
    MoveReport,
    Name,
    PeerLoad,
    RecordSizes,
    RemotePrefill,
    SaveBlock,
    Tier,
    TierFigures,
    TierStats,
    TierTraffic,
)
from tidemill.memory.lease import KVMemory, Lease
from tidemill.memory.prefix import BlockKey
from tidemill.memory.state_records import part_of, state_names

FIRST_BANDWIDTH = {Tier.RAM: 2e9, Tier.DISK: 2e8, Tier.PEER: 5e7}
"""Bytes per second until a load was measured: low ones, as what is never tried is never measured
better than this, and what is slower than this is rare."""

BANDWIDTH_RATE = 0.3
LATE_RATE = 0.7
"""Of what a probe measures."""

EXPLORE_SECONDS = 30.0
"""After so long a tier that is believed too slow is measured again, with `PROBE_BLOCKS` that nobody
waits for: else it would never be tried again."""

PROBE_BLOCKS = 4
PROBE_ROOM = 64
"""There must be so many free blocks."""

LOAD_SECONDS = 0.003
"""Of a load, whatever it brings: the threads are woken, and a step may have to end first."""

PEER_SECONDS = 0.01
"""Beside it, until a peer's first block is copied: that takes one of its steps."""

STATES_AHEAD = 2
"""Of kept states so many, the next to be evicted, are saved in RAM before."""

MOST_SAVES = 4096
"""Blocks that wait to be saved; others are then not saved before some are."""


@dataclass(slots=True, eq=False)
class Load:
    """Blocks on their way up.

    Attributes:
        load_id: its id.
        lease: holds the blocks found on the device, and those that are filled.
        first: index in the lease of the first of these.
        keys: what they get.
        nbytes: of all records.
        records: so many are brought.
        state: the block at whose end a state is brought; None: none is.
        emptied: `KVMemory.emptied` at its start.
        computed: another engine computes them.
        awaited: sequences may wait for it.
        brought: blocks that have come, once it has ended.
    """

    load_id: int
    lease: Lease
    first: int
    keys: Sequence[BlockKey]
    nbytes: int
    records: int
    state: BlockKey | None
    emptied: int
    computed: bool = False
    awaited: bool = True
    brought: int = 0


class Tiers:
    """See the module docstring.

    Args:
        memory: the device's blocks; this becomes its watcher.
        tiers: the tiers there are, the nearest first.
        sizes: of records.
        look_ahead: blocks to be evicted next that are saved in RAM before.
        tier_of: the nearest tier that has a block of a digest, good or not; on any thread.
        send: begins moves.
        announce: tells other engines that a block of a digest is here, or not any more; None:
            nobody asks.
        peer_loads: engines that may compute prompts for this one, by address; None: none may.

    Attributes:
        loads: in progress, by id.
        coming: digest -> the load that brings it.
        lost: blocks that were evicted before they were saved.
        brought: tokens brought back, by tier.
        prefills, lost_prefills: prompts that another engine was given, and those of them that did
            not come whole.
        figures: the worker's counters, by tier.
    """

    def __init__(
        self,
        memory: KVMemory,
        tiers: tuple[Tier, ...],
        sizes: RecordSizes,
        look_ahead: int,
        tier_of: Callable[[bytes], Tier | None],
        send: Callable[[BlockMoves], None],
        announce: Callable[[bytes, bool], None] | None = None,
        peer_loads: Callable[[], list[tuple[str, PeerLoad]]] | None = None,
    ) -> None:
        self._announce = announce
        self.peer_loads = peer_loads
        self.prefills = self.lost_prefills = 0
        self._own = tuple(tier for tier in tiers if tier is not Tier.PEER)
        self._offers: dict[bytes, int] = {}  # digest -> id of the copy for another engine
        self.tiers = tiers
        self.tier_of = tier_of
        self.loads: dict[int, Load] = {}
        self.coming: dict[bytes, Load] = {}
        self.lost = 0
        self.brought = dict.fromkeys(tiers, 0)
        self.figures = {tier: TierFigures() for tier in tiers}
        self._memory = memory
        self._sizes = sizes
        self._record_bytes = sizes.nbytes
        self._saved_states: set[bytes] = set()  # digests of the blocks before; others move nowhere
        self._look_ahead = look_ahead
        self._send = send
        self._ids = count()
        self._saving: dict[bytes, int] = {}  # digest -> id of the save in progress
        self._digests: dict[int, bytes] = {}  # the inverse
        self._again: list[BlockKey] = []
        self._saves: list[SaveBlock] = []  # to be sent
        self._new: list[LoadBlocks] = []
        self._bandwidth = {tier: FIRST_BANDWIDTH[tier] for tier in tiers}
        self._measured = dict.fromkeys(tiers, 0.0)  # when that was, or was begun
        self._late: set[Tier] = set()  # what is measured next counts more
        self._probes: list[tuple[Sequence[BlockKey], RemotePrefill | None]] = []
        memory.watcher = self
        self.moves_states = sizes.state_parts > 0 and memory.snapshots is not None
        if memory.snapshots is not None and self.moves_states:
            memory.snapshots.watcher = self

    # -- down --------------------------------------------------------------------------------

    def published(self, key: BlockKey, blocks: tuple[int, ...]) -> None:
        """A block is full, and findable from now on."""
        if not self._sizes.blocks:
            return
        if self._announce is not None:
            self._announce(key.digest, True)
        if Tier.DISK in self.tiers:
            self._save(key, blocks, Tier.DISK)

    def state_published(self, key: BlockKey, *, leaves: bool = False) -> None:
        """The state at the end of a block, where one is kept, is worth more than the moment;
        `leaves`: its sequence does not run any more, and others soon need its memory."""
        if not self.moves_states or self._snapshot(key) is None:
            return
        self._saved_states.add(key.digest)
        if self._announce is not None:
            for name in self._state_names(key):
                self._announce(name.digest, True)
        tiers = self._own if leaves else tuple({Tier.DISK} & {*self._own})
        if tiers:
            self._save_state(key, *tiers)

    def state_evicted(self, key: BlockKey) -> None:
        """See `SnapshotWatcher`."""
        if key.digest in self._saved_states:
            self._saved_states.remove(key.digest)
            for name in self._state_names(key):
                self._lost(name)

    def _state_names(self, key: BlockKey) -> tuple[BlockKey, ...]:
        return state_names(key, self._sizes.state_parts)

    def _snapshot(self, key: BlockKey) -> int | None:
        """The slot of the state at the end of a block."""
        snapshots = self._memory.snapshots
        kept = None if snapshots is None else snapshots.slot_after(key.digest)
        return kept[1] if kept is not None and kept[0] == key else None

    def evicted(self, key: BlockKey) -> None:
        """See `BlockWatcher`."""
        if self._sizes.blocks:
            self._lost(key)

    def _lost(self, key: BlockKey) -> None:
        if self._announce is not None and self.tier_of(key.digest) in (None, Tier.PEER):
            self._announce(key.digest, False)
        self._end_offer(key.digest)
        save_id = self._saving.pop(key.digest, None)
        if save_id is None:
            return
        self.lost += 1
        del self._digests[save_id]
        unsent = [save for save in self._saves if save.save_id != save_id]
        if len(unsent) < len(self._saves):
            self._saves = unsent
        else:
            self._send(BlockMoves(cancelled_saves=(save_id,)))

    def holds(self, digest: bytes) -> bool:
        """See `BlockWatcher`."""
        return self.tier_of(digest) in self._own

    def moved(self, key: BlockKey) -> None:
        """See `BlockWatcher`."""
        self._end_offer(key.digest)
        if key.digest in self._saving:
            self.evicted(key)
            self.lost -= 1
            self._again.append(key)

    def offer(self, names: Iterable[Name]) -> None:
        """Have blocks copied that other engines ask for."""
        saves = []
        for name in names:
            key = BlockKey(*name)
            if key.digest not in self._offers:
                save_id = self._offers[key.digest] = next(self._ids)
                self._digests[save_id] = key.digest
                saves.append(SaveBlock(save_id, key, *self._place(key)))
        if saves:
            self._send(BlockMoves(saves=tuple(saves)))

    def _end_offer(self, digest: bytes) -> None:
        save_id = self._offers.pop(digest, None)
        if save_id is not None:
            del self._digests[save_id]
            self._send(BlockMoves(cancelled_saves=(save_id,)))

    def _place(self, key: BlockKey) -> tuple[tuple[int, ...], tuple[Tier, ...], int]:
        """Where on the device is what another engine asks for, as `SaveBlock` says it."""
        part = part_of(key)
        if part < 0:
            return self._memory.blocks_under(key) or (), (Tier.PEER,), part
        snapshots = self._memory.snapshots
        kept = None if snapshots is None else snapshots.slot_after(key.parent)
        if kept is None or key not in self._state_names(kept[0]):
            return (), (Tier.PEER,), part
        self._saved_states.add(kept[0].digest)
        return (kept[1],), (Tier.PEER,), part

    def _save_state(self, key: BlockKey, *tiers: Tier) -> None:
        slot = self._snapshot(key)
        assert slot is not None
        self._saved_states.add(key.digest)
        for part, name in enumerate(self._state_names(key)):
            self._save(name, (slot,), *tiers, part=part)

    def _save(self, key: BlockKey, blocks: tuple[int, ...], *tiers: Tier, part: int = -1) -> None:
        if key.digest in self._saving or len(self._saving) >= MOST_SAVES:
            return
        save_id = next(self._ids)
        self._saving[key.digest] = save_id
        self._digests[save_id] = key.digest
        self._saves.append(SaveBlock(save_id, key, blocks, tiers, part))

    def _save_next_evicted(self) -> None:
        states = []
        for key, blocks in self._memory.next_evicted(self._look_ahead):
            if self._sizes.blocks and self.tier_of(key.digest) is not Tier.RAM:
                self._save(key, blocks, Tier.RAM)
            states.append(key)
        if (snapshots := self._memory.snapshots) is None or not self.moves_states:
            return
        for key in (*snapshots.next_evicted(STATES_AHEAD), *states):
            if self._snapshot(key) is None:
                continue
            if self.tier_of(self._state_names(key)[-1].digest) is not Tier.RAM:
                self._save_state(key, Tier.RAM)

    # -- up ----------------------------------------------------------------------------------

    def below(self, keys: Iterable[BlockKey]) -> list[Tier]:
        """The tiers of the longest run of these contents, from the first on, that lie in any. Of
        blocks that hold nothing there is nothing to bring: see `state_below`."""
        if not self._sizes.blocks:
            return []
        found = []
        for key in keys:
            tier = self.tier_of(key.digest)
            if tier is None:
                break
            found.append(tier)
        return found

    def state_below(self, key: BlockKey) -> list[Tier] | None:
        """The tiers of all parts of the state at the end of a block; None: some are in none."""
        found = []
        for name in self._state_names(key):
            tier = self.tier_of(name.digest)
            if tier is None:
                return None
            found.append(tier)
        return found

    def state_coming(self, key: BlockKey) -> Load | None:
        """The load that brings the state at the end of a block."""
        return self.coming.get(self._state_names(key)[0].digest) if self.coming else None

    @property
    def blocks_move(self) -> bool:
        """Blocks hold something that is to be brought."""
        return self._sizes.blocks

    def seconds(self, tiers: Sequence[Tier]) -> float:
        """What it takes to bring blocks that lie in these tiers, behind the loads in progress."""
        slowest = min(self._bandwidth.values())
        waiting = sum(load.nbytes for load in self.loads.values() if not load.computed) / slowest
        bring = sum(self._record_bytes / self._bandwidth[tier] for tier in tiers)
        asking = PEER_SECONDS if Tier.PEER in tiers else 0.0
        return LOAD_SECONDS + asking + waiting + bring

    def load(
        self,
        found: Sequence[tuple[int, ...]],
        keys: Sequence[BlockKey],
        prefill: RemotePrefill | None = None,
        *,
        state: BlockKey | None = None,
        awaited: bool = True,
    ) -> Load | None:
        """Bring blocks behind those found on the device, into free ones, which there must be.

        Args:
            found, keys: blocks on the device, and those to bring behind them.
            prefill: another engine computes those that it does not have.
            state: the block at whose end a recurrent state is brought, the last of them all.
            awaited: sequences may wait for it.

        Returns:
            None where there is no room for the state.
        """
        parts: tuple[BlockKey, ...] = ()
        snapshot = -1
        if state is not None and self._memory.snapshots is not None:
            reserved = self._memory.snapshots.reserve(state)
            if reserved is None:
                return None
            parts, snapshot = self._state_names(state), reserved
        first, size = len(found), self._memory.block_size
        lease = self._memory.lease(found)
        lease.grow((first + len(keys)) * size)
        names = (*(keys if self._sizes.blocks else ()), *parts)
        load = Load(
            next(self._ids), lease, first, keys, len(names) * self._record_bytes, len(names),
            state, self._memory.emptied, prefill is not None, awaited,
        )  # fmt: skip
        self.loads[load.load_id] = load
        for key in (*keys, *parts[:1]) if awaited else ():
            self.coming.setdefault(key.digest, load)
        targets = tuple(zip(*(table[first:] for table in lease.tables), strict=True))
        self._new.append(
            LoadBlocks(
                load.load_id, names, targets if self._sizes.blocks else (), prefill, snapshot,
                lease.capacity,
            )
        )  # fmt: skip
        return load

    def may_probe(self, tier: Tier, now: float) -> bool:
        """It was not measured for a while."""
        return now - self._measured[tier] >= EXPLORE_SECONDS

    def probe(
        self, tier: Tier, keys: Sequence[BlockKey], now: float, prefill: RemotePrefill | None = None
    ) -> None:
        """Measure a tier with the first of these blocks, once this step's sequences have theirs."""
        self._measured[tier] = now
        self._late.add(tier)
        self._probes.append((keys[:PROBE_BLOCKS], prefill))

    def cancel(self, load: Load) -> None:
        """Nobody waits for it any more. Its blocks are free once that is reported."""
        self._send(BlockMoves(cancelled_loads=(load.load_id,)))

    # -- both --------------------------------------------------------------------------------

    def flush(self, after: int | None) -> None:
        """Begin what was decided. `after`: the newest plan in flight, or None."""
        again, self._again = self._again, []
        for key in again:
            blocks = self._memory.blocks_under(key)
            if blocks is not None and self._own:
                self._save(key, blocks, *self._own)
        if Tier.RAM in self.tiers:
            self._save_next_evicted()
        probes, self._probes = self._probes, []
        for keys, prefill in probes:
            if self._memory.num_free >= PROBE_ROOM:
                self.load((), keys, prefill, awaited=False)
        if self._saves or self._new:
            saves, loads = tuple(self._saves), tuple(self._new)
            self._saves.clear()
            self._new.clear()
            self._send(BlockMoves(saves=saves, loads=loads, after=after))

    def take(self, report: MoveReport, now: float) -> list[Load]:
        """What has ended by now. Brought blocks are findable from now on, like blocks just freed.

        Returns:
            The loads that have ended.
        """
        for save_id in report.saves:
            digest = self._digests.pop(save_id, None)
            if digest is not None:
                held = self._offers if self._offers.get(digest) == save_id else self._saving
                del held[digest]
        self.offer(report.offers)
        if self._announce is not None:
            for digest in report.removed:
                if not self._memory.has(digest) and self.tier_of(digest) in (None, Tier.PEER):
                    self._announce(digest, False)
        self.figures.update(report.figures)
        return [self._ended(done, now) for done in report.loads]

    def _ended(self, done: LoadDone, now: float) -> Load:
        load = self.loads.pop(done.load_id)
        parts = () if load.state is None else self._state_names(load.state)
        for key in (*load.keys, *parts[:1]):
            if self.coming.get(key.digest) is load:
                del self.coming[key.digest]
        given = load.computed and load.awaited
        self.prefills += given
        self.lost_prefills += given and done.blocks < len(load.keys)
        good = done.blocks if load.emptied == self._memory.emptied else 0
        whole = good == load.records
        # Blocks that hold nothing are as good as the state behind them.
        brought = load.keys[: good if self._sizes.blocks else whole * len(load.keys)]
        load.brought = len(brought)
        for i, key in enumerate(brought):
            load.lease.publish(load.first + i, key)
            if self._announce is not None and self._sizes.blocks:
                self._announce(key.digest, True)
        if load.state is not None:
            self._end_state(load.state, whole=whole)
        load.lease.close()
        self._count(done.traffic, len(brought) if load.awaited else 0, now)
        return load

    def _end_state(self, key: BlockKey, *, whole: bool) -> None:
        """A state has come, or not."""
        assert self._memory.snapshots is not None
        if not whole:
            self._memory.snapshots.cancel(key)
            return
        self._memory.snapshots.keep(key)
        self._saved_states.add(key.digest)
        if self._announce is not None:
            for name in self._state_names(key):
                self._announce(name.digest, True)

    def _count(self, traffic: Sequence[TierTraffic], blocks: int, now: float) -> None:
        """Count the tokens of blocks that were brought, in the order in which they were."""
        for one in traffic:
            mine = min(one.blocks, blocks) if self._sizes.blocks else blocks
            blocks -= mine
            self.brought[one.tier] += mine * self._memory.block_size
            self._measure(one, now)

    def tell(self) -> tuple[TierStats, ...]:
        """Counters, for metrics."""
        return tuple(
            TierStats(
                tier=tier,
                figures=self.figures[tier],
                tokens=self.brought[tier],
                lost_blocks=self.lost,
                prefills=self.prefills if tier is Tier.PEER else 0,
                lost_prefills=self.lost_prefills if tier is Tier.PEER else 0,
            )
            for tier in self.tiers
        )

    def _measure(self, one: TierTraffic, now: float) -> None:
        if one.seconds > 0.0 and one.nbytes:
            rate = LATE_RATE if one.tier in self._late else BANDWIDTH_RATE
            self._late.discard(one.tier)
            self._measured[one.tier] = now
            # Of seconds per byte, which add up, the mean is taken.
            before = 1 / self._bandwidth[one.tier]
            after = before + rate * (one.seconds / one.nbytes - before)
            self._bandwidth[one.tier] = 1 / after
