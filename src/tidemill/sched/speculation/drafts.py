"""Drafts of rows: those that a step verifies, and what comes of them."""

from __future__ import annotations

from tidemill.base.errors import TidemillError
from tidemill.contract.plan import MOST_CONFIDENT, DraftsWanted, RowResult
from tidemill.contract.speculation import GRAMMAR, LOOKUP
from tidemill.sched.constraint import Constraint
from tidemill.sched.cost import Load
from tidemill.sched.plan_builder import InFlightRow, PlanBuilder
from tidemill.sched.policy import step_seconds
from tidemill.sched.sequence import Sequence, quiet
from tidemill.sched.state import State

DRAFT_SHARE = 2
"""One part in so many of the tokens that a step has left after its streams may be drafts."""


def choose(state: State, builder: PlanBuilder, streams: list[Sequence]) -> None:
    """Choose how many drafts these streams verify in their step.

    Each stream gets its known tokens first, and prompts get a share of what is left. Other streams
    wait for the step: it takes no longer than one with a prompt's chunk beside them may.
    """
    controller = state.speculation
    if controller is None or not any(s.drafters or s.drafts for s in streams):
        return
    most = 0
    if any(seq.drafts for seq in streams):
        most = (builder.budget - sum(seq.remaining for seq in streams)) // DRAFT_SHARE
        cost, load = state.cost, Load()
        for seq in streams:
            load.add(seq.planned, seq.remaining)
        if cost.ready and most > 0:
            seconds = step_seconds(
                state.limits, cost.bound(load), urgent=False, competing=False, brief=False
            )
            most = cost.longest_chunk(load, int(load.reach) // len(streams), most, seconds)
    if state.limits.draft_states is not None:
        most = min(most, state.limits.draft_states)
    builder.drafts = max(0, most)
    builder.chosen = controller.choose(streams, builder.drafts)


def drafts_of(
    state: State, builder: PlanBuilder, seq: Sequence, count: int
) -> tuple[tuple[int, ...], bool]:
    """The drafts that a stream's row of `count` known tokens verifies.

    Drafts never take a block from another sequence, and none is computed that cannot be accepted:
    behind an end token, beyond the maximum length, or where the constraint forbids it.

    Returns:
        The drafts, and whether a position after some of them needs a mask.
    """
    if seq.pending or count != seq.remaining or seq.lease is None:
        return (), False
    start = seq.planned + count
    # One token more than the drafts is sampled.
    chosen = builder.chosen.drafts.get(seq.seq_id, 0)
    most = min(chosen, builder.drafts, seq.max_len - len(seq.tokens) - 1)
    if seq.lease.needed(start + most) > state.memory.num_free:
        most = min(most, seq.lease.capacity - start)
    if state.memory.snapshots is not None:
        # The state at a block's end is kept for later prompts: a row's known tokens end there.
        size = state.memory.block_size
        most = min(most, size - 1 - start % size)
    drafts = seq.drafts[: max(0, most)]
    for i, token in enumerate(drafts):
        if token in seq.stop_ids:
            drafts = drafts[:i]
            break
    if seq.constraint is None or not drafts:
        return drafts, False
    return _allowed(seq.constraint, drafts)


def _allowed(constraint: Constraint, drafts: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    count, masked = 0, False
    mark = constraint.mark()
    try:
        for token in drafts:
            if not constraint.allows(token):
                break
            constraint.accept(token)
            if constraint.complete:
                break
            count += 1
            masked |= constraint.masked
    except TidemillError:  # a limit of the grammar: the token meets it again if it is sampled
        pass
    finally:
        constraint.rollback(mark)
    return drafts[:count], masked


def drafts_wanted(state: State, seq: Sequence) -> tuple[DraftsWanted, ...]:
    """Who may propose drafts after a sampling row of the sequence."""
    controller = state.speculation
    return controller.wanted(seq) if seq.drafters and controller is not None else ()


def take_result(
    state: State, in_flight: InFlightRow, result: RowResult, forced: tuple[int, ...]
) -> None:
    """After a row's step: count the drafts that came true, and keep the proposed ones, which follow
    the sampled tokens; `forced` ones were appended after these."""
    seq, controller = in_flight.seq, state.speculation
    assert controller is not None
    verified, proposed, skip = in_flight.drafts, result.draft_token_ids, len(forced)
    if verified:
        came_true = len(result.token_ids) - 1
        confidence = seq.confidence[:verified] or (0,) * verified
        controller.take(seq, seq.drafts_by, confidence, came_true)
        state.drafted += verified
        state.drafts_accepted += came_true
        if seq.drafts_by != GRAMMAR:  # nobody predicted them
            drafted, before = seq.drafts_to_report or (0, 0)
            seq.drafts_to_report = drafted + verified, before + came_true
        if seq.history is not None:
            seq.history.verified(seq.drafts_by, verified, came_true)
    if (
        in_flight.drafts_wanted
        and not verified
        and not quiet(in_flight.drafts_wanted, seq.quiet_for)
    ):
        first = in_flight.drafts_wanted[0]
        controller.took(seq, first.drafter, first.least, result.drafter == first.drafter)
    for asked in in_flight.drafts_wanted:  # in turn, until one proposes something
        if asked.drafter != LOOKUP:
            controller.proposed(seq, asked, result.drafter, result.confidence)
        if asked.drafter == result.drafter:
            break
    if forced:
        proposed = proposed[skip:] if proposed[:skip] == forced else ()
    seq.drafts, seq.quiet_for = proposed, in_flight.drafts_wanted if result.quiet else ()
    seq.drafts_by, seq.confidence = result.drafter, result.confidence[skip:]
    if seq.forces and seq.constraint is not None and (certain := seq.constraint.forced()):
        seq.drafts, seq.drafts_by = certain, GRAMMAR
        seq.confidence = (MOST_CONFIDENT,) * len(certain)
