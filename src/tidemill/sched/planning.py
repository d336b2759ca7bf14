"""Building one step: rows for running sequences, then admissions, within budget and memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.contract.plan import BlockCopy, LogitsWanted, NewSequence, Row, StepPlan
from tidemill.contract.request import Status
from tidemill.memory.lease import Growth
from tidemill.sched.policy import admission_headroom, prefill_room
from tidemill.sched.sequence import Sequence
from tidemill.sched.state import State


@dataclass(slots=True)
class Flight:
    """A row of an outstanding plan, and what undoing it takes.

    Attributes:
        seq, epoch: whose row, planned when.
        start, count, sample: as in the row.
        blocks_before: blocks its lease held before.
        admitted: the sequence was admitted by this plan.
        introduced: the executor learns of it in this plan.
    """

    seq: Sequence
    epoch: int
    start: int
    count: int
    sample: bool
    blocks_before: int
    admitted: bool
    introduced: bool


@dataclass(slots=True)
class Draft:
    """A plan under construction."""

    step_id: int
    budget: int
    rows: list[Row] = field(default_factory=list)
    new: list[NewSequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    planned: set[int] = field(default_factory=set)
    preempted: bool = False

    def plan(self, preempted: tuple[int, ...], finished: tuple[int, ...]) -> StepPlan:
        """The finished plan."""
        return StepPlan(
            step_id=self.step_id,
            new=tuple(self.new),
            rows=tuple(self.rows),
            copies=tuple(self.copies),
            preempted=preempted,
            finished=finished,
        )


def build(state: State, step_id: int, last_step: int | None) -> Draft:
    """Fill a draft: running streams first, then prefills under way, then admissions.

    Args:
        state: the scheduler's books; leases grow, victims are preempted.
        step_id: of the plan.
        last_step: the outstanding plan before it, if there is one.
    """
    limits = state.limits
    draft = Draft(step_id, limits.max_step_tokens)
    for seq in list(state.running):
        if seq.remaining == 1 and seq.lease is not None and _may_go_on(seq, draft):
            _plan_running(state, draft, seq, 1, last_step, may_yield=True)
    room = prefill_room(limits.max_step_tokens, state.memory.block_size, len(draft.rows))
    for seq in list(state.running):
        if room > 0 and seq.remaining > 1 and seq.lease is not None:
            count = min(seq.remaining, room)
            alone = not draft.rows
            room -= _plan_running(state, draft, seq, count, last_step, may_yield=alone)
    _admit(state, draft, room)
    return draft


def _may_go_on(seq: Sequence, draft: Draft) -> bool:
    """There is budget, and the tokens that outstanding steps sample are not its last ones."""
    return draft.budget > 0 and seq.known < seq.max_len


def _plan_running(
    state: State, draft: Draft, seq: Sequence, count: int, last_step: int | None, *, may_yield: bool
) -> int:
    """Give a running sequence a row, preempting others if it needs their blocks.

    Returns:
        The tokens it got: 0 when there was no memory (with `may_yield` it may have been preempted
        itself, being last in order).
    """
    lease = seq.lease
    assert lease is not None
    before = lease.num_blocks
    while lease.needed(seq.planned + count) > state.memory.num_free:
        if state.strip_waiting():
            continue
        victim = state.victim(draft.planned)
        if victim is None or (victim.order < seq.order) or (victim is seq and not may_yield):
            return 0
        state.preempt(victim)
        draft.preempted = True
        if victim is seq:
            return 0
    growth = lease.grow(seq.planned + count)
    input_from = last_step if seq.planned == len(seq.tokens) else None
    _add_row(state, draft, seq, count, growth.new_blocks, before, input_from=input_from)
    draft.copies.extend(growth.copies)
    return count


def _add_row(
    state: State,
    draft: Draft,
    seq: Sequence,
    count: int,
    blocks: tuple[tuple[int, ...], ...],
    blocks_before: int,
    *,
    input_from: int | None = None,
    admitted: bool = False,
) -> None:
    start = seq.planned
    sample = count == seq.remaining
    logits = LogitsWanted.LAST if sample else LogitsWanted.NONE
    if start + 1 < seq.prompt_len and seq.wants_prompt_logprobs:
        logits = LogitsWanted.ALL
    draft.rows.append(
        Row(
            seq_id=seq.seq_id,
            start=start,
            count=count,
            new_blocks=blocks if any(blocks) else (),
            input_from=input_from,
            logits=logits,
            sample=sample,
        )
    )
    introduced = not seq.on_worker
    draft.flights.append(
        Flight(seq, seq.epoch, start, count, sample, blocks_before, admitted, introduced)
    )
    if introduced:
        draft.new.append(_static_data(seq))
        seq.on_worker = True
    draft.planned.add(seq.seq_id)
    draft.budget -= count
    seq.planned += count
    seq.pending += sample


def _static_data(seq: Sequence) -> NewSequence:
    request = seq.owner.request
    return NewSequence(
        seq_id=seq.seq_id,
        request_id=request.request_id,
        choice=seq.choice,
        token_ids=tuple(seq.tokens),
        prompt_len=seq.prompt_len,
        sampling=request.sampling,
        banned_until=seq.banned,
        program=request.program,
        adapter=request.adapter,
    )


def _admit(state: State, draft: Draft, room: int) -> None:
    """Admit waiting sequences in order, until one does not fit: nobody overtakes it.

    A step that had to preempt admits nobody, and nobody returns while a token of it is pending.
    """
    reserved = state.blocks_promised()
    while room > 0 and not draft.preempted and len(state.running) < state.limits.max_num_seqs:
        seq = state.queue.peek()
        if seq is None or seq.pending:
            return
        idle = not state.running
        if idle:
            # Nobody else can free memory, so what waiting forks hold must not stand in the way.
            while not _fits(state, seq, 0, idle=True) and state.strip_waiting(except_for=seq):
                pass
        if not _fits(state, seq, reserved, idle=idle):
            return
        count = _open_lease(state, seq, room)
        state.queue.remove(seq)
        state.start(seq)
        assert seq.lease is not None
        growth: Growth = seq.lease.grow(seq.planned + count)
        tables = tuple(tuple(table) for table in seq.lease.tables)
        _add_row(state, draft, seq, count, tables, 0, admitted=True)
        draft.copies.extend(growth.copies)
        reserved += state.memory.blocks_for(seq.known) - seq.lease.num_blocks
        room -= count


def _found(state: State, seq: Sequence) -> list[tuple[int, ...]]:
    """Blocks of its prefix in the index; never the last known token's, which is to be computed."""
    memory = state.memory
    if not memory.prefix_caching or seq.wants_prompt_logprobs:
        return []
    full = (len(seq.tokens) - 1) // memory.block_size
    return memory.find(seq.keys_up_to(full, memory.block_size))


def _fits(state: State, seq: Sequence, reserved: int, *, idle: bool) -> bool:
    """All its known tokens find room beside what running prefills still need."""
    memory = state.memory
    if seq.lease is not None:
        need = seq.lease.needed(seq.known)
    else:
        found = _found(state, seq)
        need = memory.blocks_for(seq.known) - len(found) + memory.num_reclaimed(found)
    headroom = 0 if idle else admission_headroom(len(state.running))
    return need + reserved + headroom <= memory.num_free


def _open_lease(state: State, seq: Sequence, room: int) -> int:
    """Take the prefix hit (or the fork's shared blocks); returns the first chunk's size."""
    if seq.lease is None:
        found = _found(state, seq)
        seq.lease = state.memory.lease(found)
        seq.computed = seq.planned = len(found) * state.memory.block_size
        seq.published = len(found)
        state.note_hit(seq, seq.computed)
    return min(seq.remaining, room)


def undo(state: State, flights: list[Flight]) -> None:
    """Take a failed plan's rows back; the newest outstanding plan is undone first."""
    for flight in reversed(flights):
        seq = flight.seq
        seq.pending -= flight.sample
        if flight.introduced:
            seq.on_worker = False
        if seq.status is not Status.RUNNING or seq.epoch != flight.epoch:
            continue
        assert seq.lease is not None
        if flight.admitted:
            state.preempt(seq, counted=False)
        else:
            seq.planned = flight.start
            seq.lease.truncate(flight.blocks_before)
