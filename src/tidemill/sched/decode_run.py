"""DecodeRun: steps that only give every running sequence its next token, applied all at once.

While no request comes, ends or is cancelled, and blocks are free, `plan` and `commit` do the same
in every step. Whoever knows what these steps return and how long they take before they happen (a
simulation) may leave them out, and have the scheduler be where they would have brought it: equal
to the last bit, but for compute times of requests, whose sums are rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

from tidemill.sched.commit import publish
from tidemill.sched.cost import Load
from tidemill.sched.plain_rows import PlainRow

if TYPE_CHECKING:
    from tidemill.sched.plan_builder import InFlightRow
    from tidemill.sched.sequence import Sequence
    from tidemill.sched.state import State

LEAST_STEPS = 3
"""Fewer are not worth the preparation."""


class RunRow(NamedTuple):
    """A sequence of the run: its request's id, its own, and the position of its first token."""

    request_id: str
    seq_id: int
    start: int


class DecodeRun:
    """The steps after, and with, one in flight.

    Attributes:
        rows: one of each step.
        steps: that can be committed; after them a sequence ends.
        reach: positions of the cache that the step in flight reads.
    """

    def __init__(self, state: State, rows: Collection[InFlightRow | PlainRow], steps: int) -> None:
        self.steps = steps
        self.rows = [
            RunRow(row.seq.owner.request.request_id, row.seq.seq_id, row.start) for row in rows
        ]
        self.reach = sum(row.start + 1 for row in rows)
        self._state = state
        self._sequences = [row.seq for row in rows]
        owners = (seq.owner for seq in self._sequences)
        self._adapters = {o.adapter_slot: o.adapter_bytes for o in owners if o.adapter_slot}

    def load(self, step: int) -> Load:
        """The work of a step, the one in flight being number 0."""
        reach = self.reach + step * len(self.rows)
        load = Load(float(len(self.rows)), float(reach), float(reach))
        for slot, nbytes in self._adapters.items():
            load.add_adapter(slot, nbytes)
        return load

    def apply(self, steps: int, last_id: int, token: Callable[[int, int], int]) -> None:
        """Bring the sequences to where so many committed steps leave them, with none in flight.

        Args:
            steps: 1 to `steps`.
            last_id: id of the last of them.
            token: what a sequence samples at a position.
        """
        state, size = self._state, self._state.memory.block_size
        grown, full = list[tuple[int, int]](), list[tuple[int, int]]()
        for place, (row, seq) in enumerate(zip(self.rows, self._sequences, strict=True)):
            start, end = row.start, row.start + steps
            seq.tokens += [token(row.seq_id, position) for position in range(start, end)]
            seq.planned = end
            seq.pending = 0
            seq.num_sent = len(seq.tokens)
            seq.charged = max(seq.charged, end)
            seq.last_row = last_id
            # The step in flight has its block; each other needs one for the position it computes.
            first = start + 1 + -(start + 1) % size
            grown += [(at - start, place) for at in range(first, end, size)]
            full += [(at - start, place) for at in range(first, end + 1, size)]
        for step, place in sorted(grown):
            lease = self._sequences[place].lease
            assert lease is not None
            lease.grow(self.rows[place].start + step + 1)
        for step, place in sorted(full):
            seq = self._sequences[place]
            seq.computed = self.rows[place].start + step
            publish(state, seq)
        for row, seq in zip(self.rows, self._sequences, strict=True):
            seq.computed = row.start + steps
        tenant = self._sequences[0].owner.request.tenant
        # The step in flight was charged when it was planned.
        state.lines[False].tenants.charge_each(tenant, (steps - 1) * len(self.rows))


def run_of(state: State, rows: Collection[InFlightRow | PlainRow]) -> DecodeRun | None:
    """The run that begins with these rows in flight; None where steps differ from one another.

    Everything that waits for something else than a step must have been ruled out by the caller.
    """
    running, limits = state.running, state.limits
    if len(rows) != len(running) or len(rows) > limits.max_step_tokens or not state.cost.ready:
        return None
    if state.speculation is not None or state.bringing is not None or state.groups:
        return None
    if state.memory.snapshots is not None or len(state.lines[True].tenants):
        return None
    if len(state.queue) or state.tenants.competing(state.clock()):
        return None
    steps, blocks = limits.max_model_len, 0
    for row, seq in zip(rows, running, strict=True):
        if row.seq is not seq or not _is_plain(row, seq):
            return None
        steps = min(steps, seq.max_len - seq.known)
    if steps < LEAST_STEPS:
        return None
    for seq in running:
        assert seq.lease is not None
        blocks += seq.lease.needed(seq.planned + steps)
    return DecodeRun(state, rows, steps) if blocks <= state.memory.num_free else None


def _is_plain(row: InFlightRow | PlainRow, seq: Sequence) -> bool:
    """Its next tokens depend on nothing but that they are computed."""
    if row.epoch != seq.epoch or seq.pending != 1:
        return False
    if isinstance(row, PlainRow):
        return True
    if not row.sample or row.count != 1:
        return False
    if seq.serial or seq.drafters or seq.stop_ids or seq.constraint or seq.history is not None:
        return False
    if seq.first_token is None or seq.slice is not None or seq.owner.held:
        return False
    return seq.lease is not None and not seq.lease.borrows and not seq.owner.prompt_logprobs
