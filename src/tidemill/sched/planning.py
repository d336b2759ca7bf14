"""Building one step: decode rows first, then prefill, within the time, token and memory budgets.

Running prefills and admissions share one order. The tenant with the largest deficit is served
first, alternating between its oldest and its shortest prompt. This prevents head-of-line blocking:
a long prompt, of this tenant or another, does not delay the first token of a short one.

Background sequences come last: they take what the others leave of memory and of a step's time.
"""

from __future__ import annotations

from tidemill.contract.history import PreemptionCause, PromptChunk
from tidemill.contract.plan import LogitsWanted, NewSequence, Row
from tidemill.contract.request import Status
from tidemill.contract.speculation import LOOKUP
from tidemill.memory.lease import Growth, PartialMatch
from tidemill.memory.prefix import BlockKey
from tidemill.sched import misses, snapshots
from tidemill.sched.cost import Load
from tidemill.sched.pipelining import apart
from tidemill.sched.plan_builder import InFlightRow, PlanBuilder
from tidemill.sched.policy import (
    admission_headroom,
    background_seconds,
    decode_seconds,
    is_decoding,
)
from tidemill.sched.sequence import Sequence, Slice
from tidemill.sched.speculation import drafts as drafts_of_rows
from tidemill.sched.state import State
from tidemill.sched.step_budget import Chunk, StepBudget, is_urgent

_NO_GROWTH = Growth((), ())


def build(state: State, step_id: int, last_step: int | None) -> PlanBuilder:
    """Plan the rows of one step.

    Args:
        state: the scheduler's state; leases grow and victims are preempted.
        step_id: the id of the new plan.
        last_step: the id of the plan in flight before it, or None.
    """
    builder = PlanBuilder(step_id, state.limits.max_step_tokens)
    competing = state.tenants.competing(state.clock())
    behind = len(state.lines[True].tenants) > 0
    if behind and len(state.tenants):
        _preempt_background(state)
    if len(state.tenants) > 1:
        _preempt_for_tenant(state, builder)
    urgent = competing and any(is_urgent(state, seq) for seq in _prefill_candidates(state))
    _plan_streams(state, builder, last_step, urgent=urgent, competing=competing)
    _prefill(state, builder, last_step, competing=competing)
    if behind:
        _plan_background(state, builder, last_step)
    return builder


def _plan_streams(
    state: State, builder: PlanBuilder, last_step: int | None, *, urgent: bool, competing: bool
) -> None:
    """Plan a row for each running stream, in order; if not all fit, streams take turns.

    A stream is skipped if the tokens it samples in flight reach its maximum length. A constrained
    stream is skipped while a token is in flight, since its next mask depends on that token, and so
    is a beam, since its next token does, and one that may have drafts (`Sequence.needs_result`).
    """
    due = [s for s in state.running_of(background=False) if _is_due(s)]
    now = apart(state, due) if state.limits.pipelined else due
    chosen = _chosen_streams(state, builder, now, urgent=urgent, competing=competing)
    if state.plain_rows is not None and state.plain_rows.plan(state, builder, chosen):
        return
    drafts_of_rows.choose(state, builder, chosen)
    for seq in sorted(chosen, key=lambda s: s.order):
        _plan_stream(state, builder, seq, last_step)
    if not builder.rows and len(chosen) < len(due) and (now is due or last_step is None):
        # None of the chosen streams got memory. Try the others, since the step may otherwise stay
        # empty.
        for seq in due:
            if not builder.rows and seq.seq_id not in builder.tried:
                _plan_stream(state, builder, seq, last_step)


def _is_due(seq: Sequence) -> bool:
    return is_decoding(seq) and seq.known < seq.max_len and not (seq.pending and seq.needs_result)


def _plan_stream(state: State, builder: PlanBuilder, seq: Sequence, last_step: int | None) -> None:
    if seq.lease is not None and builder.budget > 0:
        _plan_running(state, builder, seq, Chunk(min(seq.remaining, builder.budget)), last_step)


def _chosen_streams(
    state: State, builder: PlanBuilder, due: list[Sequence], *, urgent: bool, competing: bool
) -> list[Sequence]:
    seconds = decode_seconds(state.limits, urgent=urgent, competing=competing)
    if seconds is not None and state.cost.ready:
        return _fair_rows(state, due, seconds)
    if len(due) > builder.budget:
        return sorted(due, key=lambda s: (s.last_row, s.order))[: builder.budget]
    return due


def _fair_rows(state: State, due: list[Sequence], seconds: float) -> list[Sequence]:
    """As many streams as fit into `seconds`: tenants in turn by weight, and of each tenant the
    stream first whose latest row is oldest."""
    candidates: dict[str, list[Sequence]] = {}
    for seq in sorted(due, key=lambda s: (s.last_row, s.order), reverse=True):
        candidates.setdefault(seq.owner.request.tenant, []).append(seq)
    taken: dict[str, float] = dict.fromkeys(candidates, 0.0)
    load, chosen = Load(), []
    while candidates:
        name = min(candidates, key=lambda n: taken[n])
        seq = candidates[name].pop()
        load.add(seq.planned, seq.remaining)
        _add_adapters(load, seq)
        # The first row of each tenant is always planned, so that every tenant makes progress.
        if taken[name] and state.cost.bound(load) > seconds:
            break
        chosen.append(seq)
        taken[name] += 1 / state.tenants.share(name)
        if not candidates[name]:
            del candidates[name]
    return chosen


def _prefill_candidates(state: State) -> list[Sequence]:
    """Prefills that this step could run: the running ones, and the head of each tenant's queue."""
    waiting = [seq for _, seq in state.queue.heads() if not seq.pending]
    return waiting + [seq for seq in state.running_of(background=False) if _prefills(seq)]


def _prefills(seq: Sequence) -> bool:
    return seq.remaining > 0 and not is_decoding(seq)


def _plan_running(
    state: State, builder: PlanBuilder, seq: Sequence, chunk: Chunk, last_step: int | None
) -> bool:
    """Plan a row for a running sequence, preempting others if it needs their blocks.

    Returns:
        False if not enough blocks could be freed.
    """
    count = chunk.tokens
    lease = seq.lease
    assert lease is not None
    before = lease.num_blocks
    while (
        not lease.holds(seq.planned + count)
        and lease.needed(seq.planned + count) > state.memory.num_free
    ):
        if state.release_waiting_fork():
            continue
        victim = state.victim(seq, builder.planned)
        if victim is None:
            builder.tried.add(seq.seq_id)
            return False
        state.preempt(victim, PreemptionCause.GROWTH, seq.owner.request.request_id)
        builder.preempted = True
    drafts: tuple[int, ...] = ()
    masked = False
    if seq.drafts and builder.drafts:
        drafts, masked = drafts_of_rows.drafts_of(state, builder, seq, count)
    total = seq.planned + count + len(drafts)
    # Most rows of streams go into a block that they have.
    growth = _NO_GROWTH if lease.holds(total) else lease.grow(total)
    input_from = last_step if seq.planned == len(seq.tokens) else None
    blocks = growth.new_blocks
    if not seq.on_worker:  # a beam forked from one that runs
        blocks = tuple(tuple(table) for table in lease.tables)
    _add_row(
        state, builder, seq, chunk, blocks, before,
        input_from=input_from, drafts=drafts, masked=masked,
    )  # fmt: skip
    builder.copies.extend(growth.copies)
    return True


def _add_row(
    state: State,
    builder: PlanBuilder,
    seq: Sequence,
    chunk: Chunk,
    blocks: tuple[tuple[int, ...], ...],
    blocks_before: int,
    *,
    input_from: int | None = None,
    admitted: bool = False,
    source: int = -1,
    drafts: tuple[int, ...] = (),
    masked: bool = False,
) -> None:
    start = seq.planned
    (count, layers), total = chunk, state.limits.layers
    done = layers is None or layers.end == total
    last = done and count == seq.remaining
    sample = last and seq.owner.request.pooling is None
    logits = LogitsWanted.LAST if sample else LogitsWanted.NONE
    if done and start + 1 < seq.prompt_len and seq.needs_prompt_logprobs:
        logits = LogitsWanted.ALL
    wanted = drafts_of_rows.drafts_wanted(state, seq) if sample and seq.drafters else ()
    kept: dict[int, tuple[BlockKey, int]] = {}
    if state.memory.snapshots is not None:
        kept = snapshots.reserve(state, snapshots.snapshots_to_take(state, seq, start, count))
    introduced = not seq.on_worker
    unsent = () if introduced else tuple(seq.tokens[seq.num_sent :])
    builder.rows.append(
        Row(
            seq_id=seq.seq_id,
            start=start,
            count=count,
            new_blocks=blocks if any(blocks) else (),
            new_token_ids=unsent,
            new_token_start=seq.num_sent if unsent else 0,
            input_from=input_from,
            layers=layers,
            state_from=source,
            fork_of=seq.fork_of,
            snapshots=tuple((position, slot) for position, (_, slot) in kept.items())
            if kept
            else (),
            logits=logits,
            sample=sample,
            adapter_slot=seq.owner.slot_at(start),
            mask_announced=masked
            or (sample and seq.constraint is not None and seq.constraint.masked),
            draft_token_ids=drafts,
            drafts_wanted=wanted,
        )
    )
    in_flight = InFlightRow(
        seq,
        seq.epoch,
        start,
        count if done else 0,
        sample,
        seq.slice,
        blocks_before,
        seq.charged,
        seq.num_sent,
        admitted,
        introduced,
        tuple(key for key, _ in kept.values()) if kept else (),
        source,
        len(drafts),
        wanted,
    )
    seq.num_sent, seq.asked = len(seq.tokens), wanted
    builder.rows_in_flight.append(in_flight)
    if introduced:
        builder.new.append(_static_data(state, seq))
        seq.on_worker = True
    builder.planned.add(seq.seq_id)
    builder.budget -= count + len(drafts)
    builder.drafts -= len(drafts)
    share = 1.0 if layers is None else (layers.end - layers.begin) / total
    builder.load.add(start, count + len(drafts), share)
    _add_adapters(builder.load, seq, share)
    _charge(state, in_flight)
    seq.last_row = builder.step_id
    seq.slice = None if layers is None or done else Slice(count, layers.end)
    seq.planned += in_flight.count
    seq.pending += sample
    seq.verifying += len(drafts)


def _add_adapters(load: Load, seq: Sequence, share: float = 1.0) -> None:
    if seq.owner.adapter_slot:
        load.add_adapter(seq.owner.slot_at(seq.planned), seq.owner.adapter_bytes, share)


def _charge(state: State, in_flight: InFlightRow, sign: int = 1) -> None:
    """Charge the tenant for positions that are computed for the first time; `sign` -1 refunds."""
    seq, end = in_flight.seq, in_flight.start + in_flight.count + in_flight.drafts
    fresh = max(0, end - max(in_flight.start, in_flight.charged_before))
    state.lines[seq.background].tenants.charge(seq.owner.request.tenant, sign * fresh)
    seq.charged = max(in_flight.charged_before, end) if sign > 0 else in_flight.charged_before


def _static_data(state: State, seq: Sequence) -> NewSequence:
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
        pooling=request.pooling,
        candidates=0 if seq.owner.beams is None else seq.owner.beams.candidates,
        drafters=seq.drafters,
        prediction=request.prediction if seq.drafters else (),
        answers_of=f"{request.tenant}\0{request.cache_salt}"
        if state.limits.lookup_answers and LOOKUP in seq.drafters
        else "",
        virtual_tokens=seq.owner.virtual_tokens,
    )


def _prefill(
    state: State,
    builder: PlanBuilder,
    last_step: int | None,
    *,
    competing: bool,
    foreground: float | None = None,
) -> None:
    """Spend the rest of the step's budget on prefill; with `foreground` given, on that of
    background sequences (see `StepBudget`).

    Waiting sequences are admitted in order until one does not fit; none overtakes it. A step that
    preempted for a running sequence admits none.
    """
    step_budget = StepBudget(state, builder, competing=competing, foreground=foreground)
    background = foreground is not None
    tenants = state.lines[background].tenants
    admitting = not builder.preempted
    if background:  # none overtakes a sequence of the foreground that waits for memory
        admitting = admitting and not len(state.queue)
    else:
        admitting = admitting and _streams_may_grow(state)
    reserved = state.blocks_promised() if admitting else 0
    while builder.budget > 0:
        seq = _next_prefill(state, builder, admitting=admitting, background=background)
        if seq is None:
            return
        if seq.lease is not None and seq in state.running:
            chunk = step_budget.chunk(seq, seq.planned)
            if chunk.tokens == 0:
                return
            promised = _blocks_promised(state, seq)
            note = _chunk_of(state, builder, step_budget, seq, seq.planned, chunk)
            if _plan_running(state, builder, seq, chunk, last_step):
                if note is not None and seq.history is not None:
                    seq.history.planned(note)
                tenants.record_turn(seq.owner.request.tenant)
            reserved -= promised - _blocks_promised(state, seq)
            # No sequence is admitted into blocks that a preemption of this step has freed.
            admitting = admitting and not builder.preempted
            continue
        found = _cached_blocks(state, seq) if seq.lease is None else []
        if not (state.has_place(seq) and _fits_now(state, seq, found, reserved)):
            admitting = False
            continue
        if seq.lease is None and state.bringing is not None and _bring(state, seq, found):
            continue
        partial_match = _partial_match(state, seq, found, reserved)
        start = seq.planned
        if seq.lease is None:
            start = len(found) * state.memory.block_size + (
                partial_match.tokens if partial_match else 0
            )
        chunk = step_budget.chunk(seq, start)
        if chunk.tokens == 0:
            return
        note = _chunk_of(state, builder, step_budget, seq, start, chunk)
        if seq.history is not None and note is not None:
            if seq.lease is None and seq.history.prefix is None:
                seq.history.prefix = misses.look(state, seq, len(found), partial_match)
            seq.history.planned(note)
        _admit(state, builder, seq, found, partial_match, start, chunk)
        tenants.record_turn(seq.owner.request.tenant)
        reserved += _blocks_promised(state, seq) + _for_beams(seq)


def _chunk_of(
    state: State,
    builder: PlanBuilder,
    step_budget: StepBudget,
    seq: Sequence,
    start: int,
    chunk: Chunk,
) -> PromptChunk | None:
    """A chunk that is about to be planned, as it is told; None where nobody asks."""
    if seq.history is None:
        return None
    limit, seconds = step_budget.limit(seq, start, chunk)
    layers = 0 if chunk.layers is None else chunk.layers.end - chunk.layers.begin
    streams = step_budget.streams
    step = builder.step_id
    return PromptChunk(state.clock(), step, start, chunk.tokens, limit, streams, seconds, layers)


def _next_prefill(
    state: State, builder: PlanBuilder, *, admitting: bool, background: bool = False
) -> Sequence | None:
    """The next sequence to prefill: of the tenant with the largest deficit, by priority.

    Among prompts of equal priority, the shortest and the oldest alternate. A chunk with some layers
    computed goes first, since only one chunk at a time may be split by layers.
    """
    first, builder.first = builder.first, None
    if first is not None and admitting:
        return first
    running = state.running_of(background=background)
    for seq in running:
        if seq.slice and seq.seq_id not in builder.planned and seq.seq_id not in builder.tried:
            return seq
    candidates: dict[str, list[Sequence]] = {}
    for seq in running:
        if seq.seq_id not in builder.planned and seq.seq_id not in builder.tried and _prefills(seq):
            candidates.setdefault(seq.owner.request.tenant, []).append(seq)
    if admitting and state.places > 0:
        for name, seq in state.lines[background].queue.heads():
            if not seq.pending:
                candidates.setdefault(name, []).append(seq)
    if not candidates:
        return None
    tenant = state.lines[background].tenants.pick(candidates)
    line = candidates[tenant.name]
    priority = min(seq.order[0] for seq in line)
    line = [seq for seq in line if seq.order[0] == priority]
    if tenant.turns % 2 == 0:
        return min(line, key=lambda s: s.order)
    return min(line, key=lambda s: (s.remaining, s.order))


def _streams_may_grow(state: State) -> bool:
    """True if decode rows stay within --max-itl-ms with one more stream of average context."""
    limit = state.limits.max_itl
    running = state.running_of(background=False)
    if limit is None or not state.cost.ready or not running:
        return True
    load = Load()
    for seq in running:
        load.add(seq.known, 1)
        _add_adapters(load, seq)
    load.add(int(load.reach) // len(running), 1)
    return state.cost.bound(load) <= limit


def _preempt_for_tenant(state: State, builder: PlanBuilder) -> None:
    """Admit a tenant that has no running sequence, by preempting one of a tenant above its share.

    The sequence to admit is left in `builder.first`.
    """
    running = {seq.owner.request.tenant for seq in state.running_of(background=False)}
    heads = [
        (n, s)
        for n, s in state.queue.heads()
        # A beam search waits for its places: others might be preempted, and still too few be free.
        if n not in running and not s.pending and s.owner.beams is None
    ]
    if not heads:
        return
    name, seq = max(heads, key=lambda head: state.tenants.deficit(head[0]))
    total = state.memory.capacity_tokens // state.memory.block_size
    if state.memory.blocks_for(seq.known) > state.tenants.share(name) * total:
        return  # larger than the tenant's whole share: it waits for free blocks
    reserved = state.blocks_promised()
    while not (
        state.has_place(seq) and _fits_now(state, seq, _cached_blocks(state, seq), reserved)
    ):
        preempted = state.preemptable_for(name)
        if preempted is None:
            return
        state.preempt(preempted, PreemptionCause.TENANT, seq.owner.request.request_id)
        reserved = state.blocks_promised()
    builder.first = seq


def _preempt_background(state: State) -> None:
    """Make room for waiting sequences of the foreground at the cost of background sequences."""
    for _, seq in state.queue.heads():
        if seq.pending:
            continue
        while not (
            state.has_place(seq)
            and _fits_now(state, seq, _cached_blocks(state, seq), state.blocks_promised())
        ):
            victim = state.background_victim()
            if victim is None:
                return
            state.preempt(victim, PreemptionCause.FOREGROUND, seq.owner.request.request_id)


def _plan_background(state: State, builder: PlanBuilder, last_step: int | None) -> None:
    """Plan rows of background sequences, within the time and memory that the others leave."""
    cost = state.cost
    if builder.num_rows and not cost.ready:
        return
    foreground = cost.bound(builder.load) if builder.num_rows else 0.0
    seconds = background_seconds(foreground, 0.0, cost.least)
    due = [seq for seq in state.running_of(background=True) if _is_due(seq)]
    if state.limits.pipelined and last_step is not None:
        due = apart(state, due)
    builder.drafts = 0  # beside the others' rows it has none
    if due and not builder.num_rows:
        drafts_of_rows.choose(state, builder, due)
    for seq in sorted(due, key=lambda s: (s.last_row, s.order)):
        if builder.num_rows:
            load = builder.load.plus(seq.planned, seq.remaining)
            if cost.ready and cost.bound(load) > seconds:
                break
        _plan_stream(state, builder, seq, last_step)
    _prefill(state, builder, last_step, competing=False, foreground=foreground)


def _admit(
    state: State,
    builder: PlanBuilder,
    seq: Sequence,
    found: list[tuple[int, ...]],
    partial_match: PartialMatch | None,
    start: int,
    chunk: Chunk,
) -> None:
    """Open the lease (a fork already has one), start the sequence and plan its first row."""
    if seq.lease is None:
        seq.lease = state.memory.lease(found, partial_match)
        seq.computed = seq.planned = start
        seq.published = len(found)
        state.count_prefix_hit(seq, seq.computed)
        state.count_resumed(seq, seq.computed)
    source = snapshots.start_snapshot(state, seq)
    state.queue_of(seq).remove(seq)
    state.start(seq)
    growth: Growth = seq.lease.grow(seq.planned + chunk.tokens)
    tables = tuple(tuple(table) for table in seq.lease.tables)
    _add_row(state, builder, seq, chunk, tables, 0, admitted=True, source=source)
    builder.copies.extend(growth.copies)


def _blocks_promised(state: State, seq: Sequence) -> int:
    """Blocks per group that its known tokens still need."""
    assert seq.lease is not None
    return max(0, state.memory.blocks_for(seq.known) - seq.lease.num_blocks)


def _for_beams(seq: Sequence) -> int:
    """Blocks per group for the beams that will be forked from it."""
    return 0 if seq.owner.beams is None else seq.owner.beams.reserved


def _cached_blocks(state: State, seq: Sequence) -> list[tuple[int, ...]]:
    """Cached blocks of its prefix, without the last known token, which is always computed."""
    memory = state.memory
    if not _can_use_prefix(state, seq):
        return []
    full = (len(seq.tokens) - 1) // memory.block_size
    return memory.find(seq.keys_up_to(full, memory.block_size))


def _bring(state: State, seq: Sequence, found: list[tuple[int, ...]]) -> bool:
    """Let a sequence that fits wait for blocks of a lower tier, if that is worth it."""
    assert state.bringing is not None
    size, step = state.memory.block_size, state.limits.max_step_tokens
    if not state.bringing.begin(seq, found, size, step):
        return False
    state.queue_of(seq).remove(seq)
    return True


def _can_use_prefix(state: State, seq: Sequence) -> bool:
    return seq.lease is None and state.memory.prefix_caching and not seq.needs_every_position


def _partial_match(
    state: State, seq: Sequence, found: list[tuple[int, ...]], reserved: int
) -> PartialMatch | None:
    """A cached block that shares its first tokens with the sequence after the blocks found; None
    without one, or if it does not fit. Until it is copied it occupies one more block."""
    if not _can_use_prefix(state, seq) or not _fits(state, seq, found, reserved, 1):
        return None
    size = state.memory.block_size
    keys = seq.keys_up_to(len(found), size)
    start = len(found) * size
    rest = seq.tokens[start : min(start + size, len(seq.tokens) - 1)]
    parent = keys[-1].digest if keys else seq.owner.root
    return state.memory.partial_match(parent, rest, seq.media_within(start, start + size))


def _fits_now(state: State, seq: Sequence, found: list[tuple[int, ...]], reserved: int) -> bool:
    """True if all known tokens fit into the free blocks that running prefills do not need."""
    if not state.running:
        # Nothing runs that could free blocks later, so the leases of waiting forks are closed.
        while not _fits(state, seq, found, 0, 0) and state.release_waiting_fork(except_for=seq):
            pass
        return _fits(state, seq, found, 0, 0)
    return _fits(state, seq, found, reserved, admission_headroom(len(state.running)))


def _fits(
    state: State, seq: Sequence, found: list[tuple[int, ...]], reserved: int, headroom: int
) -> bool:
    memory = state.memory
    if seq.lease is not None:
        need = seq.lease.needed(seq.known)
    else:
        need = memory.blocks_for(seq.known) - len(found) + memory.num_reclaimed(found)
    need += _for_beams(seq)
    return need + reserved + headroom <= memory.num_free


def undo(state: State, rows_in_flight: list[InFlightRow]) -> None:
    """Undo the rows of a failed plan. Plans in flight are undone newest first."""
    for in_flight in reversed(rows_in_flight):
        seq = in_flight.seq
        snapshots.finish_row(state, in_flight, good=False)
        if seq.history is not None:
            seq.history.undone(in_flight.start)
        seq.pending -= in_flight.sample
        seq.verifying -= in_flight.drafts
        _charge(state, in_flight, -1)
        seq.num_sent = min(seq.num_sent, in_flight.sent_before)
        if in_flight.introduced:
            seq.on_worker = False
        if seq.status is not Status.RUNNING or seq.epoch != in_flight.epoch:
            continue
        assert seq.lease is not None
        if in_flight.admitted or in_flight.introduced:
            # Also the first row of a forked beam: what it borrowed may not have been copied.
            state.preempt(seq, None)
        else:
            seq.planned, seq.slice = in_flight.start, in_flight.slice_before
            seq.lease.truncate(in_flight.blocks_before)
