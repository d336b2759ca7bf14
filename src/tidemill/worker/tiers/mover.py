"""Mover: brings blocks down into the tiers and back, one at a time, beside running steps.

Loads come before saves, and take turns block by block. A save copies a block that nobody holds: it
may be handed out again meanwhile. Whoever does that cancels the save before the block is written,
and a copy that was being made then is discarded. So saves take no memory of the cache, and no step
waits for one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tidemill.backends.base import Int32, UInt8
from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.contract.moves import (
    BlockMoves,
    LoadBlocks,
    LoadDone,
    MoveReport,
    Name,
    PeerLoad,
    RecordSizes,
    SaveBlock,
    Tier,
    TierFigures,
    TierTraffic,
)
from tidemill.worker.tiers.disk import DiskTier
from tidemill.worker.tiers.ram import RamTier

if TYPE_CHECKING:
    from tidemill.transfer.link import Link
    from tidemill.transfer.peers import Fetch, Peers
    from tidemill.transfer.serving import BlockServer

_log = get_logger(__name__)

NICENESS = 10
"""Of the thread, where the system has niceness per thread. Where all cores compute, moves get about
a tenth of one, and a step with running streams takes that much longer at most."""

FETCH_LOOK_SECONDS = 0.25
"""Between looks at whether a peer has been silent for too long."""

REPORT_SAVES = 64
"""Ended saves are reported together, so many at most, or when there is nothing else to do."""


MAX_PART_BYTES = 2**20
"""Of a state's records, where blocks hold nothing, and so do not say how large a record is."""


def record_sizes(block_bytes: int, state_bytes: int) -> RecordSizes:
    """How a cache with blocks and states of so many bytes is cut into records."""
    nbytes = block_bytes or min(state_bytes, MAX_PART_BYTES)
    return RecordSizes(nbytes, -(-state_bytes // nbytes), block_bytes > 0)


class BlockCache(Protocol):
    """The part of a backend that moves need."""

    def block_bytes(self) -> tuple[int, ...]: ...

    def read_blocks(self, group: int, blocks: Int32, out: UInt8) -> None: ...

    def write_blocks(self, group: int, blocks: Int32, data: UInt8) -> None: ...

    def state_bytes(self) -> int: ...

    def read_state(self, state: int, at: int, out: UInt8) -> None: ...

    def write_state(self, state: int, at: int, data: UInt8, tokens: int) -> None: ...


class Closing(Protocol):
    """What has to be closed."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Load:
    """A load in progress: how many of its blocks are there, what that took by tier, and what comes
    of a peer."""

    what: LoadBlocks
    count: int = 0
    traffic: dict[Tier, list[float]] = field(default_factory=dict)
    fetch: Fetch | None = None
    fetched: float = 0.0  # when the latest block of a peer came, or was asked for


class Mover:
    """See the module docstring. `begin`, `tier_of` and `close` may be called on any thread.

    Args:
        cache: what blocks are read from and written to.
        ram, disk: the tiers there are.
        first_snapshot: of a recurrent model, the state that snapshot 0 is.

    Attributes:
        tiers: those there are, the nearest first.
        sizes: of records.
        report: called with what has ended, on the thread that works.
        peers: other engines; their changes must wake this (`wake`).
        server: serves blocks to others.
        on_requests: takes connections of other servers that send requests; None: they are ended.
    """

    def __init__(
        self,
        cache: BlockCache,
        ram: RamTier | None,
        disk: DiskTier | None,
        first_snapshot: int = 0,
    ) -> None:
        self.report: Callable[[MoveReport], None] = lambda report: None
        self.on_requests: Callable[[Link], None] | None = None
        self.tiers = tuple(
            t for t, held in ((Tier.RAM, ram), (Tier.DISK, disk)) if held is not None
        )
        self.peers: Peers | None = None
        self.server: BlockServer | None = None
        self._closed_first: tuple[Closing, ...] = ()
        self._cache = cache
        self._ram, self._disk = ram, disk
        self._sizes = cache.block_bytes()
        self.sizes = record_sizes(sum(self._sizes), cache.state_bytes())
        self._state_bytes, self._first_snapshot = cache.state_bytes(), first_snapshot
        self._buffer = np.empty(self.sizes.nbytes, np.uint8)
        self._wake = threading.Condition()
        self._loads: deque[_Load] = deque()
        self._unwanted: set[int] = set()  # loads, perhaps ones that are not here yet
        self._saves: dict[int, SaveBlock] = {}
        self._saving: int | None = None  # None as well once its copy is to be discarded
        self._ended: list[int] = []
        self._moved = dict.fromkeys(Tier, (0, 0, 0.0))  # blocks, bytes, seconds of loads
        self._closing = False
        self._thread: threading.Thread | None = None

    def attach(self, peers: Peers | None, server: BlockServer | None, *more: Closing) -> None:
        """Other engines; before `start`. `more` are closed first."""
        self.peers, self.server = peers, server
        self.tiers = (*self.tiers, Tier.PEER)
        self._closed_first = tuple(one for one in (*more, peers, server) if one is not None)

    def start(self) -> None:
        """Work on a thread of its own, until `close`."""
        self._thread = threading.Thread(target=self._run, name="tidemill-tiers", daemon=True)
        self._thread.start()

    def tier_of(self, digest: bytes) -> Tier | None:
        """The nearest tier that has a block of this digest, good or not."""
        if self._ram is not None and self._ram.has(digest):
            return Tier.RAM
        if self._disk is not None and self._disk.has(digest):
            return Tier.DISK
        if self.peers is not None and self.peers.has(digest):
            return Tier.PEER
        return None

    @property
    def listens(self) -> bool:
        """Other engines ask for this one's blocks."""
        return self.server is not None

    def announce(self, digest: bytes, there: bool) -> None:
        """The cache has a block from now on, or no tier has it any more."""
        if self.server is not None:
            self.server.announced.note(digest, there=there)

    def peer_loads(self) -> list[tuple[str, PeerLoad]]:
        """Peers that may compute prompts for this engine, by address, and what they have to do. On
        any thread."""
        return [] if self.peers is None else self.peers.loads()

    def bring(self, names: tuple[Name, ...]) -> None:
        """Other engines ask for blocks. On any thread."""
        self.report(MoveReport(offers=names))

    def wake(self) -> None:
        """Something of a peer has changed. On any thread."""
        with self._wake:
            self._wake.notify()

    def begin(self, moves: BlockMoves) -> None:
        """Begin moves, and cancel others; `BlockMoves.after` is the caller's business."""
        with self._wake:
            for save_id in moves.cancelled_saves:
                dropped = self._saves.pop(save_id, None)
                if dropped is not None and self.server is not None:
                    self.server.outbox.put(dropped.name[0], None)
                if self._saving == save_id:
                    self._saving = None
            self._unwanted.update(moves.cancelled_loads)
            self._saves.update((save.save_id, save) for save in moves.saves)
            self._loads.extend(map(_Load, moves.loads))
            self._wake.notify()

    def work(self) -> bool:
        """Move a block; False if there is nothing to do."""
        with self._wake:
            load = self._next_load()
            save = None
            if load is None and self._saves:
                save = self._saves.pop(next(iter(self._saves)))
                self._saving = save.save_id
        if load is not None:
            self._continue(load)
        elif save is not None:
            try:
                self._save(save)
            except Exception:
                _log.exception("a KV block could not be saved")
            self._ended.append(save.save_id)
        if self._ended and (len(self._ended) >= REPORT_SAVES or save is None):
            self._tell()
        return load is not None or save is not None

    def _next_load(self) -> _Load | None:
        """The next load that gets on."""
        for load in self._loads:
            if self._gets_on(load):
                self._loads.remove(load)
                return load
        return None

    def _gets_on(self, load: _Load) -> bool:
        unwanted = self._closing or load.what.load_id in self._unwanted
        return load.fetch is None or unwanted or load.fetch.ready

    def _continue(self, load: _Load) -> None:
        names = load.what.names
        try:
            wanted = not self._closing and load.what.load_id not in self._unwanted
            before = load.fetch
            good = wanted and self._bring(load, names[load.count])
            if load.fetch is not None and load.fetch is not before:  # it was asked for just now
                with self._wake:
                    self._loads.append(load)
                return
        except Exception:
            _log.exception("KV blocks could not be brought back; they are computed")
            good = False
        load.count += good
        if good and load.count < len(names):
            with self._wake:
                self._loads.append(load)
            return
        self._unwanted.discard(load.what.load_id)
        if load.fetch is not None:
            load.fetch.cancel()
        traffic = tuple(
            TierTraffic(tier, int(blocks), int(nbytes), seconds)
            for tier, (blocks, nbytes, seconds) in load.traffic.items()
        )
        self._tell(LoadDone(load.what.load_id, load.count, traffic))

    def _bring(self, load: _Load, name: Name) -> bool:
        begun = monotonic()
        tier, data = Tier.PEER, None
        # What a peer sends comes in its order, whatever nearer tiers have got meanwhile.
        if load.fetch is None or (load.fetch.complete and load.what.prefill is None):
            tier, data = self._found(load, name)
        if tier is Tier.PEER:
            data, begun = self._fetched(load), load.fetched
        if data is None:
            return False
        self._write(load.what, load.count, data)
        if tier is Tier.PEER and load.fetch is not None and not load.fetch.confirm():
            return False
        now = monotonic()
        seconds, load.fetched = now - begun, now
        taken = load.traffic.setdefault(tier, [0.0, 0.0, 0.0])
        # A peer's first block waits for the other side, and so does what it computes, which says
        # nothing of the bandwidth.
        fetch = load.fetch if tier is Tier.PEER else None
        waited = fetch is not None and (fetch.taken == 1 or fetch.waited)
        measured = (1, 0, 0.0) if waited else (1, data.nbytes, seconds)
        for i, more in enumerate(measured):
            taken[i] += more
        blocks, nbytes, before = self._moved[tier]
        self._moved[tier] = blocks + 1, nbytes + data.nbytes, before + seconds
        return True

    def _found(self, load: _Load, name: Name) -> tuple[Tier, UInt8 | None]:
        """A block in this engine's own tiers; else PEER."""
        if load.what.prefill is not None:
            return Tier.PEER, None
        data = None if self._ram is None else self._ram.find(name)
        if data is not None:
            return Tier.RAM, data
        if self._disk is not None and self._disk.load(name, self._buffer):
            return Tier.DISK, self._buffer
        return Tier.PEER, None

    def _write(self, what: LoadBlocks, index: int, data: UInt8) -> None:
        """Write what came under the name of this index."""
        if index >= len(what.blocks):
            part, last = index - len(what.blocks), index + 1 == len(what.names)
            at, size = self._part(part)
            state = self._first_snapshot + what.snapshot
            self._cache.write_state(state, at, data[:size], what.tokens if last else -1)
            return
        at = 0
        for group, block in enumerate(what.blocks[index]):
            size = self._sizes[group]
            self._cache.write_blocks(group, np.array([block], np.int32), data[at : at + size])
            at += size

    def _part(self, part: int) -> tuple[int, int]:
        """Where in a state a part begins, and its bytes."""
        at = part * self.sizes.nbytes
        return at, min(self.sizes.nbytes, self._state_bytes - at)

    def _fetched(self, load: _Load) -> UInt8 | None:
        """The next block from a peer, where one is there; else it may have been asked for now."""
        if self.peers is None:
            return None
        prefill = load.what.prefill
        if load.fetch is None or (load.fetch.complete and prefill is None):
            names = load.what.names[load.count :]
            if load.fetch is not None:
                load.fetch.give_back()
            if prefill is None:
                load.fetch = self.peers.fetch(names)
            else:
                load.fetch = self.peers.prefill(names, prefill)
            load.fetched = monotonic()
            return None
        if load.fetch.complete:  # the prompt was longer than what is asked for at a time
            return None
        data = load.fetch.take()
        return None if data is None else np.frombuffer(data, np.uint8)

    def _lend(self, save: SaveBlock) -> None:
        """Copy a block for those who asked for it, if there still are some."""
        assert self.server is not None
        name, outbox = save.name, self.server.outbox
        if not outbox.wants(name[0]):
            outbox.put(name[0], None)
            return
        copy = outbox.buffer()
        out = np.frombuffer(copy, np.uint8)
        if save.blocks:
            good = self._read(save, out)
        else:
            found = None if self._ram is None else self._ram.find(name)
            if found is not None:
                out[:] = found
            good = found is not None or (self._disk is not None and self._disk.load(name, out))
        if not good:
            outbox.give_back(copy)
        outbox.put(name[0], copy if good else None)

    def _save(self, save: SaveBlock) -> None:
        if Tier.PEER in save.tiers:
            self._lend(save)
            return
        ram = self._ram if Tier.RAM in save.tiers else None
        disk = self._disk if Tier.DISK in save.tiers else None
        digest = save.name[0]
        ram = None if ram is None or ram.has(digest) else ram
        disk = None if disk is None or disk.has(digest) else disk
        if (ram is None and disk is None) or not self._read(save, self._buffer):
            return
        if ram is not None:
            ram.save(save.name, self._buffer)
        if disk is not None:
            disk.save(save.name, self._buffer)

    def _read(self, save: SaveBlock, into: UInt8) -> bool:
        """Read the cache's blocks of a save, or a part of its state; False: they were handed out
        meanwhile."""
        if save.part >= 0:
            at, size = self._part(save.part)
            state = self._first_snapshot + save.blocks[0]
            self._cache.read_state(state, at, into[:size])
            into[size:] = 0
        else:
            at = 0
            for group, block in enumerate(save.blocks):
                out = into[at : at + self._sizes[group]]
                self._cache.read_blocks(group, np.array([block], np.int32), out)
                at += self._sizes[group]
        with self._wake:
            # If the block was handed out, this may be half of another.
            good, self._saving = self._saving is not None, None
            return good

    def _tell(self, *loads: LoadDone) -> None:
        ended, self._ended = tuple(self._ended), []
        removed = () if self._disk is None else self._disk.take_removed()
        self.report(MoveReport(loads=loads, saves=ended, figures=self._figures(), removed=removed))

    def _figures(self) -> tuple[tuple[Tier, TierFigures], ...]:
        found = []
        for tier, held in ((Tier.RAM, self._ram), (Tier.DISK, self._disk)):
            if held is not None:
                blocks, nbytes, seconds = self._moved[tier]
                found.append((tier, held.figures(blocks, nbytes, seconds)))
        if Tier.PEER in self.tiers:
            blocks, nbytes, seconds = self._moved[Tier.PEER]
            server, peers = self.server, self.peers
            figures = TierFigures(
                held_bytes=0 if server is None else server.outbox.held_bytes,
                saved_blocks=0 if server is None else server.sent,
                loaded_blocks=blocks,
                loaded_bytes=nbytes,
                load_seconds=seconds,
                damaged_blocks=0 if peers is None else peers.damaged,
            )
            found.append((Tier.PEER, figures))
        return tuple(found)

    def close(self, seconds: float = 0.0) -> None:
        """End the thread, and before it what is to be saved, for so long. Loads are dropped."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        for one in self._closed_first:
            one.close()
        if self._thread is None:
            return
        self._thread.join(seconds)
        with self._wake:
            self._saves.clear()
        self._thread.join()

    def _has_work(self) -> bool:
        if self._saves or self._closing or self._ended:
            return True
        return any(map(self._gets_on, self._loads))

    def _announce_old(self, disk: DiskTier) -> None:
        """Other engines may ask for what lies on disk since before this start."""
        if self.server is not None:
            for digest in disk.digests():
                self.server.announced.note(digest, there=True)

    def _run(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        if self._disk is not None:
            self._disk.held()  # looked up before it is needed
            self._announce_old(self._disk)
        while True:
            worked = self.work()
            with self._wake:
                if self._closing and not worked:
                    return
                while not self._has_work():
                    self._wake.wait(FETCH_LOOK_SECONDS if self._loads else None)
