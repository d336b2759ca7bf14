"""StepBudget: the size of prefill chunks, by predicted time once steps were measured, else by
tokens."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.contract.history import ChunkLimit
from tidemill.contract.plan import LayerRange
from tidemill.sched.cost import Load
from tidemill.sched.fairness import QUANTUM
from tidemill.sched.history import limit_of
from tidemill.sched.plan_builder import PlanBuilder
from tidemill.sched.policy import (
    BRIEF_PROMPT_SECONDS,
    MAX_SLICE,
    MIN_CHUNK,
    SLICE_BELOW,
    SLICE_LAYERS,
    URGENT_SECONDS,
    URGENT_STEPS,
    background_seconds,
    prefill_tokens,
    step_seconds,
)
from tidemill.sched.sequence import Sequence
from tidemill.sched.state import State


class Chunk(NamedTuple):
    """The tokens of a row, and the layers to compute; None: all."""

    tokens: int
    layers: LayerRange | None = None


FULL = Chunk(0)


def is_urgent(state: State, seq: Sequence) -> bool:
    """True if the prompt is within its tenant's deficit and its prefill is short."""
    owed = state.tenants.deficit(seq.owner.request.tenant)
    uncached = seq.known - (seq.owner.cached_tokens or 0)
    if uncached > QUANTUM * seq.owner.request.weight or seq.remaining > owed:
        return False
    alone = Load().plus(seq.planned, seq.remaining)
    return state.cost.bound(alone) <= URGENT_STEPS * URGENT_SECONDS


def is_brief(state: State, seq: Sequence) -> bool:
    """True if the prefill of the prompt, its cached prefix excluded, is short."""
    cached = seq.owner.cached_tokens or 0
    return state.cost.bound(Load().plus(cached, seq.known - cached)) <= BRIEF_PROMPT_SECONDS


class StepBudget:
    """Sizes the prefill chunks of one step.

    Args:
        state: the scheduler's state.
        builder: the plan, which already has its decode rows.
        competing: several tenants are active.
        foreground: for background sequences: predicted seconds of the others' rows, 0 without any.
    """

    def __init__(
        self,
        state: State,
        builder: PlanBuilder,
        *,
        competing: bool,
        foreground: float | None = None,
    ) -> None:
        self._state = state
        self._builder = builder
        self._competing = competing
        self._foreground = foreground
        self.streams = builder.num_rows
        self._budget = builder.budget
        self._decode = state.cost.bound(builder.load) if self.streams else 0.0
        block_size = state.memory.block_size
        self._tokens = prefill_tokens(state.limits.max_step_tokens, block_size, self.streams)

    def chunk(self, seq: Sequence, start: int) -> Chunk:
        """The next chunk of a sequence from position `start` on; `FULL` if the step is full."""
        if self._state.limits.whole_prompts:
            return Chunk(self._whole(seq, start))
        builder, cost = self._builder, self._state.cost
        most = min(seq.known - start, builder.budget)
        if start < seq.owner.boundary:
            most = min(most, seq.owner.boundary - start)
        if not cost.ready:
            return Chunk(max(0, min(most, self._tokens - (self._budget - builder.budget))))
        seconds = self._seconds(seq)
        # Others' rows do not wait for a background chunk of the minimum size.
        alone = builder.num_rows == self.streams and not self._foreground
        if seq.slice is not None and not (self._state.limits.layers and seq.slice.tokens <= most):
            self._state.drop_slice(seq)
        if seq.slice is not None:
            return self._layers_of(start, *seq.slice, seconds, alone=alone)
        count = cost.longest_chunk(builder.load, start, most, seconds)
        if alone and count < min(most, SLICE_BELOW) and self._may_slice():
            tokens = self._sliced(start, most, seconds)
            return self._layers_of(start, tokens, 0, seconds, alone=True)
        if alone:
            return Chunk(max(count, min(most, MIN_CHUNK)))
        # A tiny chunk would cost a row without bringing the prompt closer to its first token; in
        # the background it may be all that there ever is time for.
        least = 1 if self._foreground is not None else min(most, MIN_CHUNK)
        return Chunk(count) if count >= least else FULL

    def limit(self, seq: Sequence, start: int, chunk: Chunk) -> tuple[ChunkLimit, float]:
        """Why a chunk just made is no longer; and the seconds that the step may take, where that is
        why. Asked before the chunk is planned."""
        timed = self._state.cost.ready and not self._state.limits.whole_prompts
        limit = limit_of(
            chunk.tokens,
            rest=seq.known - start,
            budget=self._builder.budget,
            least=MIN_CHUNK,
            timed=timed,
            layered=chunk.layers is not None,
        )
        by_time = limit in (ChunkLimit.TIME, ChunkLimit.LEAST, ChunkLimit.LAYERS)
        return limit, self._seconds(seq) if by_time else 0.0

    def _seconds(self, seq: Sequence) -> float:
        """Seconds that the step may take with a chunk of this sequence."""
        if self._foreground is not None:
            return background_seconds(self._foreground, self._decode, self._state.cost.least)
        competing = self._competing
        return step_seconds(
            self._state.limits,
            self._decode,
            urgent=competing and is_urgent(self._state, seq),
            competing=competing,
            brief=not competing and is_brief(self._state, seq),
        )

    def _whole(self, seq: Sequence, start: int) -> int:
        """Tokens of a prompt that must be computed in one step: all, or 0 if they do not fit. The
        first row of a step always fits."""
        builder, cost = self._builder, self._state.cost
        count = seq.known - start
        if not builder.num_rows:
            return count
        if count > builder.budget:
            return 0
        seconds = step_seconds(
            self._state.limits, 0.0, urgent=False, competing=self._competing, brief=False
        )
        if self._foreground is not None:
            seconds = background_seconds(self._foreground, 0.0, cost.least)
        late = cost.ready and cost.bound(builder.load.plus(start, count)) > seconds
        return 0 if late else count

    def _may_slice(self) -> bool:
        """True if streams wait for the step, and no other chunk is partly computed."""
        state = self._state
        return (
            self.streams > 0
            and state.limits.layers > 1
            and all(seq.slice is None for seq in state.running)
            and self._foreground is None
        )

    def _sliced(self, start: int, most: int, seconds: float) -> int:
        """Tokens of a chunk of which `SLICE_LAYERS` layers fit into a step like this one."""
        cost, load = self._state.cost, self._builder.load
        bound = cost.bound(load)
        spare = max(0.0, seconds - bound) * self._state.limits.layers / SLICE_LAYERS
        most = min(most, MAX_SLICE)
        return max(min(most, MIN_CHUNK), cost.longest_chunk(load, start, most, bound + spare))

    def _layers_of(
        self, start: int, tokens: int, begin: int, seconds: float, *, alone: bool
    ) -> Chunk:
        """As many layers of a chunk, from `begin` on, as fit into `seconds`; at least one if the
        chunk is the first of the step (`alone`)."""
        cost, load, layers = self._state.cost, self._builder.load, self._state.limits.layers
        whole = max(cost.bound_of_row(load, start, tokens), 1e-9)
        fit = int(layers * (seconds - cost.bound(load)) / whole)
        end = min(layers, begin + (max(1, fit) if alone else fit))
        if end <= begin:
            return FULL
        return Chunk(tokens, None if (begin, end) == (0, layers) else LayerRange(begin, end))
