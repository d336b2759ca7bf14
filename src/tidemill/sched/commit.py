"""Applying a step's results: accepted tokens, published blocks, forks and finished choices."""

from __future__ import annotations

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.plan import RowResult
from tidemill.contract.request import (
    ChoiceOutput,
    FinishReason,
    RequestError,
    RequestTimings,
    Status,
)
from tidemill.sched import snapshots
from tidemill.sched.plan_builder import InFlightRow
from tidemill.sched.sequence import Emission, Sequence
from tidemill.sched.speculation import drafts
from tidemill.sched.state import State


def commit_row(state: State, in_flight: InFlightRow, result: RowResult) -> Emission | None:
    """Apply the result of one row.

    Returns:
        The output for the client, or None. The row of a choice that has ended is ignored.
    """
    seq = in_flight.seq
    seq.pending -= in_flight.sample
    seq.verifying -= in_flight.drafts
    good = result.error is None and in_flight.epoch == seq.epoch
    if state.memory.snapshots is not None:
        snapshots.finish_row(state, in_flight, good=good and seq.status is not Status.FINISHED)
    if seq.status is Status.FINISHED:
        return None
    beams = seq.owner.beams
    if result.error is not None:
        error = RequestError(result.error_kind, result.error, result.error_param)
        if beams is not None:
            beams.error = error  # ends with all its choices (`beams.advance`)
            return None
        return finish(state, seq, FinishReason.ERROR, error=error)
    if in_flight.epoch == seq.epoch:
        seq.computed = in_flight.start + in_flight.count
        if in_flight.drafts:
            _compute_drafts(state, seq, result)
    if result.prompt_logprobs:
        _take_prompt_logprobs(seq, in_flight, result)
    if beams is not None:
        if in_flight.epoch == seq.epoch:
            publish(state, seq)
            seq.fork_of = -1
            if in_flight.sample:
                beams.results[seq.seq_id] = result
        return None
    try:
        accepted, stop_token, reason = _accept(seq, result)
    except TidemillError as error:
        failure = RequestError(error.kind, error.message, error.param, error.retryable)
        return finish(state, seq, FinishReason.ERROR, error=failure)
    if (seq.drafters or seq.forces) and in_flight.sample:
        # A choice may end before all the drafts that came true.
        seq.computed = min(seq.computed, len(seq.tokens))
        drafts.take_result(state, in_flight, result, accepted[len(result.token_ids) :])
    state.forced += len(accepted) - len(result.token_ids) if reason is None else 0
    if in_flight.epoch == seq.epoch:
        publish(state, seq)
    if result.pooled:
        return finish(state, seq, FinishReason.STOP, result=result)
    if in_flight.sample:
        release_held(state, seq)
    if reason is not None:
        return finish(state, seq, reason, tokens=accepted, stop_token=stop_token, result=result)
    if not accepted:
        return None
    if seq.first_token is None:
        seq.first_token = state.clock()
        _tell_prompt(state, seq)
    return Emission(seq.owner.client, _output(seq, accepted, result))


def _compute_drafts(state: State, seq: Sequence, result: RowResult) -> None:
    """The drafts that came true are computed. The sequence has no other row in flight: its next one
    overwrites the others."""
    seq.computed += max(0, len(result.token_ids) - 1)
    seq.planned = seq.computed
    if seq.lease is not None:
        seq.lease.truncate(state.memory.blocks_for(seq.planned))


def _accept(
    seq: Sequence, result: RowResult
) -> tuple[tuple[int, ...], int | None, FinishReason | None]:
    """Append sampled tokens and the tokens that a constraint forces after them.

    Returns:
        The appended tokens, the stop token if it is one of them, and the finish reason or None.
    """
    accepted: list[int] = []
    coming = result.token_ids
    while coming:
        for token in coming:
            accepted.append(token)
            stop_token, reason = append_token(seq, token)
            if len(accepted) <= len(result.token_ids):
                seq.num_sent = len(seq.tokens)  # the executor sampled it
            if reason is not None:
                return tuple(accepted), stop_token, reason
        coming = seq.constraint.forced() if seq.jumps and seq.constraint is not None else ()
    return tuple(accepted), None, None


def append_token(seq: Sequence, token: int) -> tuple[int | None, FinishReason | None]:
    """Append a token to a choice.

    Returns:
        The token if it is a stop token, else None; the finish reason, or None if the choice
        continues.

    Raises:
        TidemillError: the choice's constraint does not allow the token.
    """
    seq.tokens.append(token)
    return advance(seq)


def advance(seq: Sequence) -> tuple[int | None, FinishReason | None]:
    """Evaluate the last token, a generated one; returns and raises as `append_token`."""
    reason = finish_reason_of(seq)
    if reason is FinishReason.STOP:
        return seq.tokens[-1], reason
    if seq.constraint is not None:
        seq.constraint.accept(seq.tokens[-1])
        if seq.constraint.complete:
            return None, FinishReason.STOP
        if seq.unbounded and seq.constraint.repeats:
            return None, FinishReason.LENGTH
    return None, reason


def finish_reason_of(seq: Sequence) -> FinishReason | None:
    """Why the choice ends with its last token; None if it continues."""
    return finish_reason_at(seq, len(seq.tokens), seq.tokens[-1])


def finish_reason_at(seq: Sequence, known: int, last: int) -> FinishReason | None:
    """Why the choice ends with `known` tokens and this last one; None if it continues."""
    generated = known - seq.prompt_len
    if generated > seq.owner.request.sampling.min_tokens and last in seq.stop_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if known >= seq.max_len else None


def _take_prompt_logprobs(seq: Sequence, in_flight: InFlightRow, result: RowResult) -> None:
    logprobs = seq.owner.prompt_logprobs
    if logprobs and result.prompt_logprobs:
        first = in_flight.start + 1 - seq.owner.virtual_tokens
        for index, logprob in enumerate(result.prompt_logprobs, first):
            if 0 < index < len(logprobs):
                logprobs[index] = logprob


def publish(state: State, seq: Sequence) -> None:
    """Publish the blocks that this step filled in the prefix index."""
    memory = state.memory
    full = seq.computed // memory.block_size
    if memory.prefix_caching and full > seq.published and seq.lease is not None:
        keys = seq.keys_up_to(full, memory.block_size)
        for index in range(seq.published, full):
            if seq.lease.publish(index, keys[index]) and state.bringing is not None:
                blocks = tuple(table[index] for table in seq.lease.tables)
                state.bringing.tiers.published(keys[index], blocks)
        seq.published = full


def _tell_prompt(state: State, seq: Sequence) -> None:
    """Tell who follows the cache what a prompt became, now that it is computed."""
    changes = state.memory.changes
    if changes is None or seq.choice != 0 or seq.owner.beams is not None:
        return
    size = state.memory.block_size
    blocks = min(seq.prompt_len // size, seq.published)
    keys = seq.keys_up_to(blocks, size)
    changes.prompt(seq.owner.request.request_id, keys, seq.prompt_len)


def release_held(state: State, leader: Sequence) -> None:
    """Queue the held choices as forks of the leader, whose prompt is computed."""
    owner = leader.owner
    held, owner.held = owner.held, []
    for seq in held:
        state.add_fork(seq, leader)


def finish(
    state: State,
    seq: Sequence,
    reason: FinishReason,
    *,
    tokens: tuple[int, ...] = (),
    stop_token: int | None = None,
    result: RowResult | None = None,
    error: RequestError | None = None,
) -> Emission:
    """End a choice in any state; its blocks are free when this returns."""
    owner = seq.owner
    now = state.clock()
    if tokens and seq.first_token is None:
        seq.first_token = now
        _tell_prompt(state, seq)
    timings = RequestTimings(
        received=owner.received,
        first_scheduled=seq.first_scheduled or 0.0,
        first_token=seq.first_token or 0.0,
        finished=now,
        preemptions=seq.preemptions,
        computed=owner.take_compute(),
    )
    output = _output(
        seq, tokens, result, reason=reason, stop_token=stop_token, error=error, timings=timings
    )
    if seq in owner.held:
        owner.held.remove(seq)
    state.retire(seq)
    _promote(state, seq)
    return Emission(owner.client, output)


def _promote(state: State, ended: Sequence) -> None:
    """If the ended choice was the leader, make the next held choice compute the prompt."""
    owner = ended.owner
    if owner.ready and owner.held and all(seq in owner.held for seq in owner.open_choices):
        state.queue_of(owner.held[0]).push(owner.held.pop(0))


def _output(
    seq: Sequence,
    tokens: tuple[int, ...],
    result: RowResult | None,
    *,
    reason: FinishReason | None = None,
    stop_token: int | None = None,
    error: RequestError | None = None,
    timings: RequestTimings | None = None,
) -> ChoiceOutput:
    first = not seq.first_sent
    seq.first_sent = True
    drafted = came_true = 0
    if seq.drafts_to_report is not None:
        (drafted, came_true), seq.drafts_to_report = seq.drafts_to_report, None
    owner = seq.owner
    logprobs = None
    if result is not None and result.logprobs is not None:
        logprobs = result.logprobs[: len(tokens)]
    prompt_logprobs = None
    if tokens and owner.prompt_logprobs:
        prompt_logprobs, owner.prompt_logprobs = tuple(owner.prompt_logprobs), []
    return ChoiceOutput(
        request_id=owner.request.request_id,
        choice=seq.choice,
        token_ids=tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        finish_reason=reason,
        stop_token=stop_token,
        cached_tokens=owner.cached_of_prompt if first else None,
        error=error,
        timings=timings,
        pooled=b"" if result is None else result.pooled,
        drafted=drafted,
        drafts_accepted=came_true,
        scheduled=(seq.first_scheduled or 0.0) if first else 0.0,
        history=None if reason is None or seq.history is None else seq.history.told(),
    )


def internal_error(message: str) -> RequestError:
    """The error sent to the client after a bug in Tidemill; retryable."""
    return RequestError(ErrorKind.INTERNAL, message, None, True)
