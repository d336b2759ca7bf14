"""Bringing: sequences whose next blocks lie in a tier below the device.

A sequence that could be admitted now, and whose prefix goes on in a tier, leaves its queue until
the blocks are there, if that takes less time than to compute them. Then it is queued again at its
old place, and finds them like any cached prefix. Of a recurrent model, blocks are worth nothing
without the state at the end of the last one, which is brought with them. Nothing is decided here
that an answer depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

from tidemill.contract.moves import MoveReport, Tier
from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import BlockKey
from tidemill.memory.tiers import Load, Tiers
from tidemill.sched.cost import StepCost, computing
from tidemill.sched.sequence import Sequence

if TYPE_CHECKING:
    from tidemill.sched.remote_prefill import RemotePrefills

MOST_LOADS = 3
"""Of a sequence, between two admissions: what is evicted again before it is admitted is computed in
the end."""


class Bringing:
    """See the module docstring.

    Args:
        tiers: where blocks lie.
        memory: the device's blocks.
        cost: predicts the time of steps.
        clock: seconds.
        remote: has other engines compute prompts; None: there are none.

    Attributes:
        waiting: sequences that wait for blocks, by id, and the load each waits for.
    """

    def __init__(
        self,
        tiers: Tiers,
        memory: KVMemory,
        cost: StepCost,
        clock: Callable[[], float],
        remote: RemotePrefills | None = None,
    ) -> None:
        self.tiers = tiers
        self.remote = remote
        self._memory = memory
        self.waiting: dict[int, tuple[Sequence, Load]] = {}
        self._cost = cost
        self._clock = clock

    def begin(self, seq: Sequence, found: list[tuple[int, ...]], size: int, step: int) -> bool:
        """Let a sequence wait for its next blocks; False: what it lacks is to be computed.

        Args:
            seq: it fits into the free blocks, and has none.
            found: its first blocks, which are on the device.
            size: tokens per block.
            step: tokens that a step computes at most.
        """
        if seq.loads >= MOST_LOADS or seq.needs_every_position:
            return False
        full = (len(seq.tokens) - 1) // size
        if full <= len(found):
            return False
        keys = seq.keys_up_to(full, size)
        if self.tiers.moves_states:
            load = self._load_state(keys, len(found), size, step)
        else:
            keys = keys[len(found) :]
            load = self.tiers.coming.get(keys[0].digest)
            if load is None:
                load = self._load(seq, found, keys, size, step)
        if load is None:
            return False
        seq.loads += 1
        self.waiting[seq.seq_id] = seq, load
        return True

    def _load(
        self,
        seq: Sequence,
        found: list[tuple[int, ...]],
        keys: list[BlockKey],
        size: int,
        step: int,
    ) -> Load | None:
        below = self.tiers.below(keys)
        count = self._worth(below, len(found) * size, size, step)
        self._measure_again(below[count:], keys[count:])
        if self.remote is not None:
            prefill = self.remote.choose(seq, len(found), keys, below, count)
            if prefill is not None:
                return self.tiers.load(found, keys, prefill)
        return self.tiers.load(found, keys[:count]) if count else None

    def _measure_again(self, tiers: list[Tier], keys: list[BlockKey]) -> None:
        """Let the tier of the first of these blocks, which are not brought, be measured."""
        if tiers and self.tiers.may_probe(tiers[0], self._clock()):
            run = next(groupby(zip(tiers, keys, strict=False), lambda one: one[0]))
            self.tiers.probe(run[0], [key for _, key in run[1]], self._clock())

    def _load_state(self, keys: list[BlockKey], computed: int, size: int, step: int) -> Load | None:
        """As `_load`, of a recurrent model: up to the boundary, of those whose states lie in tiers,
        with which most time is saved.

        Args:
            keys: of all blocks of the sequence.
            computed: so many of them, with the state at their end, are on the device.
            size, step: see `begin`.
        """
        held = self._memory.held(keys)
        below = self.tiers.below(keys[len(held) :])
        reach = len(held) + len(below) if self.tiers.blocks_move else len(keys)
        best, most = 0, 0.0
        for end in range(reach, computed, -1):
            if (load := self.tiers.state_coming(keys[end - 1])) is not None:
                return load
            state = self.tiers.state_below(keys[end - 1])
            if state is None:
                continue
            if not self._cost.ready:
                best = end
                break
            compute = computing(self._cost, computed * size, end * size, step)
            saved = compute - self.tiers.seconds([*below[: max(0, end - len(held))], *state])
            if saved > most:
                best, most = end, saved
        if not best:
            self._measure_again(below, keys[len(held) :])
            return None
        return self.tiers.load(held[:best], keys[len(held) : best], state=keys[best - 1])

    def _worth(self, tiers: list[Tier], start: int, size: int, step: int) -> int:
        """How many blocks to bring: up to the end of the run of one tier with which most time is
        saved. Within a run it is all or nothing, as each block is as quick to bring, and slower to
        compute, than the one before."""
        if not tiers or not self._cost.ready:
            return len(tiers)
        best, most, count = 0, 0.0, 0
        for _, run in groupby(tiers):
            count += len(list(run))
            compute = computing(self._cost, start, start + count * size, step)
            if compute - self.tiers.seconds(tiers[:count]) > most:
                best, most = count, compute - self.tiers.seconds(tiers[:count])
        return best

    def take(self, report: MoveReport) -> list[Sequence]:
        """What has become of moves; returns the sequences that are to be queued again."""
        ended = self.tiers.take(report, self._clock())
        if not ended:
            return []
        ready = [(seq, load) for seq, load in self.waiting.values() if load in ended]
        for seq, load in ready:
            del self.waiting[seq.seq_id]
            seq.brought += load.brought * self._memory.block_size
        return [seq for seq, _ in ready]

    def drop(self, seq: Sequence) -> None:
        """A sequence has ended; unless it waits here, nothing is to be done."""
        entry = self.waiting.pop(seq.seq_id, None)
        if entry is not None and all(load is not entry[1] for _, load in self.waiting.values()):
            self.tiers.cancel(entry[1])
