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
from typing import Protocol

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
    SaveBlock,
    Tier,
    TierFigures,
    TierTraffic,
)
from tidemill.worker.tiers.disk import DiskTier
from tidemill.worker.tiers.ram import RamTier

_log = get_logger(__name__)

NICENESS = 10
"""Of the thread, where the system has niceness per thread. Where all cores compute, moves get about
a tenth of one, and a step with running streams takes that much longer at most."""

REPORT_SAVES = 64
"""Ended saves are reported together, so many at most, or when there is nothing else to do."""


class BlockCache(Protocol):
    """The part of a backend that moves need."""

    def block_bytes(self) -> tuple[int, ...]: ...

    def read_blocks(self, group: int, blocks: Int32, out: UInt8) -> None: ...

    def write_blocks(self, group: int, blocks: Int32, data: UInt8) -> None: ...


@dataclass(slots=True)
class _Load:
    """A load in progress: how many of its blocks are there, and what that took by tier."""

    what: LoadBlocks
    count: int = 0
    traffic: dict[Tier, list[float]] = field(default_factory=dict)


class Mover:
    """See the module docstring. `begin`, `tier_of` and `close` may be called on any thread.

    Args:
        cache: what blocks are read from and written to.
        ram, disk: the tiers there are, at least one.

    Attributes:
        tiers: those there are, the nearest first.
        report: called with what has ended, on the thread that works.
    """

    def __init__(self, cache: BlockCache, ram: RamTier | None, disk: DiskTier | None) -> None:
        self.report: Callable[[MoveReport], None] = lambda report: None
        self.tiers = tuple(
            t for t, held in ((Tier.RAM, ram), (Tier.DISK, disk)) if held is not None
        )
        self._cache = cache
        self._ram, self._disk = ram, disk
        self._sizes = cache.block_bytes()
        self._buffer = np.empty(sum(self._sizes), np.uint8)
        self._wake = threading.Condition()
        self._loads: deque[_Load] = deque()
        self._unwanted: set[int] = set()  # loads, perhaps ones that are not here yet
        self._saves: dict[int, SaveBlock] = {}
        self._saving: int | None = None  # None as well once its copy is to be discarded
        self._ended: list[int] = []
        self._moved = dict.fromkeys(Tier, (0, 0, 0.0))  # blocks, bytes, seconds of loads
        self._closing = False
        self._thread: threading.Thread | None = None

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
        return None

    def begin(self, moves: BlockMoves) -> None:
        """Begin moves, and cancel others; `BlockMoves.after` is the caller's business."""
        with self._wake:
            for save_id in moves.cancelled_saves:
                self._saves.pop(save_id, None)
                if self._saving == save_id:
                    self._saving = None
            self._unwanted.update(moves.cancelled_loads)
            self._saves.update((save.save_id, save) for save in moves.saves)
            self._loads.extend(map(_Load, moves.loads))
            self._wake.notify()

    def work(self) -> bool:
        """Move a block; False if there is nothing to do."""
        with self._wake:
            load = self._loads.popleft() if self._loads else None
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

    def _continue(self, load: _Load) -> None:
        names = load.what.names
        try:
            wanted = not self._closing and load.what.load_id not in self._unwanted
            good = wanted and self._bring(load, names[load.count])
        except Exception:
            _log.exception("KV blocks could not be brought back; they are computed")
            good = False
        load.count += good
        if good and load.count < len(names):
            with self._wake:
                self._loads.append(load)
            return
        self._unwanted.discard(load.what.load_id)
        traffic = tuple(
            TierTraffic(tier, int(blocks), int(nbytes), seconds)
            for tier, (blocks, nbytes, seconds) in load.traffic.items()
        )
        self._tell(LoadDone(load.what.load_id, load.count, traffic))

    def _bring(self, load: _Load, name: Name) -> bool:
        begun = monotonic()
        tier, data = Tier.RAM, None if self._ram is None else self._ram.find(name)
        if data is None and self._disk is not None and self._disk.load(name, self._buffer):
            tier, data = Tier.DISK, self._buffer
        if data is None:
            return False
        at = 0
        for group, block in enumerate(load.what.blocks[load.count]):
            size = self._sizes[group]
            self._cache.write_blocks(group, np.array([block], np.int32), data[at : at + size])
            at += size
        seconds = monotonic() - begun
        taken = load.traffic.setdefault(tier, [0.0, 0.0, 0.0])
        for i, more in enumerate((1, data.nbytes, seconds)):
            taken[i] += more
        blocks, nbytes, before = self._moved[tier]
        self._moved[tier] = blocks + 1, nbytes + data.nbytes, before + seconds
        return True

    def _save(self, save: SaveBlock) -> None:
        ram = self._ram if Tier.RAM in save.tiers else None
        disk = self._disk if Tier.DISK in save.tiers else None
        digest = save.name[0]
        ram = None if ram is None or ram.has(digest) else ram
        disk = None if disk is None or disk.has(digest) else disk
        if ram is None and disk is None:
            return
        at = 0
        for group, block in enumerate(save.blocks):
            out = self._buffer[at : at + self._sizes[group]]
            self._cache.read_blocks(group, np.array([block], np.int32), out)
            at += self._sizes[group]
        with self._wake:
            if self._saving is None:  # the block was handed out: this may be half of another
                return
            self._saving = None
        if ram is not None:
            ram.save(save.name, self._buffer)
        if disk is not None:
            disk.save(save.name, self._buffer)

    def _tell(self, *loads: LoadDone) -> None:
        ended, self._ended = tuple(self._ended), []
        self.report(MoveReport(loads=loads, saves=ended, figures=self._figures()))

    def _figures(self) -> tuple[tuple[Tier, TierFigures], ...]:
        found = []
        for tier, held in ((Tier.RAM, self._ram), (Tier.DISK, self._disk)):
            if held is not None:
                blocks, nbytes, seconds = self._moved[tier]
                found.append((tier, held.figures(blocks, nbytes, seconds)))
        return tuple(found)

    def close(self, seconds: float = 0.0) -> None:
        """End the thread, and before it what is to be saved, for so long. Loads are dropped."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is None:
            return
        self._thread.join(seconds)
        with self._wake:
            self._saves.clear()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        if self._disk is not None:
            self._disk.held()  # looked up before it is needed
        while True:
            worked = self.work()
            with self._wake:
                if self._closing and not worked:
                    return
                while not (self._loads or self._saves or self._closing or self._ended):
                    self._wake.wait()
