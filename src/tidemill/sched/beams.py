"""Beam groups: the beams of a request as sequences, forked and dropped after every round.

Every live beam is a running sequence. Its rows compute its tokens like any other's, and the last
one returns candidates instead of a token. Once all live beams have theirs, the round is decided
(`beam_search`): of the beams that continue one, the first takes over its sequence and the others
fork from it, sharing its blocks (copy on write); the sequences of beams that do not continue end,
and their blocks are free. Nothing is output before the search has ended.

A preemption ends all sequences but the first beam's. When that has computed its tokens again, the
others are forked from it where they differ.
"""

from __future__ import annotations

from bisect import insort

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.beams import beam_blocks
from tidemill.contract.request import (
    ChoiceOutput,
    EngineRequest,
    FinishReason,
    RequestError,
    RequestTimings,
    Status,
    TokenLogprob,
)
from tidemill.sched.beam_search import BeamSearch, Offer
from tidemill.sched.commit import finish_reason_at
from tidemill.sched.constraint import Constraint
from tidemill.sched.sequence import (
    Beam,
    BeamGroup,
    Emission,
    Ended,
    RequestState,
    Sequence,
    TokenChain,
)
from tidemill.sched.state import State, common


def open_group(state: State, owner: RequestState) -> None:
    """Make a request with one sequence a beam search."""
    request, seq = owner.request, owner.choices[0]
    sampling = request.sampling
    width = sampling.beam_width
    owner.beams = BeamGroup(
        owner=owner,
        search=BeamSearch(
            width=width,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
            longest=seq.max_len - seq.prompt_len,
        ),
        # Of a row, as many as can be among the best, and those that end in addition.
        candidates=width + len(seq.stop_ids),
        live=[Beam(seq)],
        open=list(range(sampling.n)),
        reserved=width - 1,
    )
    seq.serial = True
    state.groups.append(owner.beams)


def advance(state: State, group: BeamGroup) -> list[Emission]:
    """Decide the round if all live beams have their candidates; the outputs if the search ends."""
    if group.error is not None:
        return end(state, group, FinishReason.ERROR, error=group.error)
    leader = group.leader
    if leader.seq_id not in group.results:
        return []
    if group.live[-1].seq.status is Status.FINISHED:
        _restore(state, group)
    if len(group.results) < len(group.live):
        return []
    if not group.first_token:
        group.first_token = state.clock()
        group.first_scheduled = leader.first_scheduled or 0.0
    try:
        done = _decide(state, group)
    except TidemillError as error:
        failure = RequestError(error.kind, error.message, error.param, error.retryable)
        return end(state, group, FinishReason.ERROR, error=failure)
    return _complete(state, group) if done else []


class _Endings:
    """Why candidates of a round end their beams; keeps the constraints that it has advanced."""

    def __init__(self, group: BeamGroup) -> None:
        self._group = group
        self.constraints: dict[tuple[int, int], Constraint] = {}

    def __call__(self, offer: Offer) -> bool:
        return self.reason(offer) is not None

    def reason(self, offer: Offer) -> tuple[FinishReason, int | None] | None:
        """The finish reason and stop token; None if the beam continues.

        Raises:
            TidemillError: see `Constraint.accept`.
        """
        seq = self._group.live[offer.beam].seq
        reason = finish_reason_at(seq, len(seq.tokens) + 1, offer.token)
        if reason is FinishReason.STOP:
            return reason, offer.token
        if seq.constraint is not None:
            at = offer.beam, offer.token
            if at not in self.constraints:
                self.constraints[at] = seq.constraint.fork()
                self.constraints[at].accept(offer.token)
            if self.constraints[at].complete:
                return FinishReason.STOP, None
        return None if reason is None else (reason, None)


def _decide(state: State, group: BeamGroup) -> bool:
    """Apply a round; True if the search has ended."""
    before, results = group.live, [group.results[beam.seq.seq_id] for beam in group.live]
    endings = _Endings(group)
    found = [[(c.token_id, c.score) for c in result.candidates] for result in results]
    decided = group.search.next(found, endings)

    def chain(offer: Offer) -> TokenChain | None:
        result = results[offer.beam]
        if result.logprobs is None:
            return None
        candidate = result.candidates[offer.rank]
        last = TokenLogprob(offer.token, candidate.logprob, result.logprobs[0].top)
        return TokenChain(last, before[offer.beam].logprobs)

    for hypothesis in decided.ended:
        reason = endings.reason(hypothesis.offer)
        assert reason is not None
        seq, offer = before[hypothesis.offer.beam].seq, hypothesis.offer
        tokens = (*seq.tokens[seq.prompt_len :], offer.token)
        group.ended[hypothesis] = Ended(tokens, chain(offer), *reason)
    group.ended = {h: group.ended[h] for h in group.search.hypotheses}
    group.results = {}
    if decided.done:
        return True
    live = _continue(state, group, decided.live)
    for beam, offer in zip(live, decided.live, strict=True):
        beam.logprobs = chain(offer)
        beam.seq.constraint = endings.constraints.get((offer.beam, offer.token))
        beam.seq.tokens.append(offer.token)
    group.live = live
    group.reserved = 0
    group.owner.choices = [beam.seq for beam in live]
    return False


def _continue(state: State, group: BeamGroup, offers: list[Offer]) -> list[Beam]:
    """Sequences of the next beams, without their new tokens."""
    heirs = {offer.beam for offer in offers}
    places = {group.live[i].seq.choice for i in heirs}
    free = iter([i for i in range(group.search.width) if i not in places])
    taken: set[int] = set()
    live = []
    for offer in offers:
        parent = group.live[offer.beam].seq
        if offer.beam in taken:
            live.append(Beam(_fork(state, parent, parent.tokens, next(free))))
        else:
            taken.add(offer.beam)
            live.append(Beam(parent))
    for i, beam in enumerate(group.live):
        if i not in heirs:
            state.retire(beam.seq)
    return live


def _restore(state: State, group: BeamGroup) -> None:
    """Fork the other beams again from the first one, which has computed its tokens."""
    leader = group.leader
    free = (i for i in range(group.search.width) if i != leader.choice)
    for beam in group.live[1:]:
        old = beam.seq
        shared = common(old.tokens, leader.tokens)
        beam.seq = _fork(state, leader, old.tokens, next(free), shared)
        beam.seq.constraint = old.constraint
    group.reserved = 0
    group.owner.choices = [beam.seq for beam in group.live]


def _fork(
    state: State, parent: Sequence, tokens: list[int], choice: int, shared: int | None = None
) -> Sequence:
    """A running sequence of these tokens that shares blocks with its parent.

    Args:
        state: the scheduler's state.
        parent: runs, and has computed all its tokens.
        tokens: of the new one.
        choice: its number among the beams.
        shared: tokens that both begin with; None: all of them.
    """
    assert parent.lease is not None
    count = parent.computed if shared is None else state.memory.shareable(shared)
    seq = Sequence(
        seq_id=next(state.seq_ids),
        owner=parent.owner,
        choice=choice,
        order=(*parent.order[:3], choice),
        tokens=list(tokens),
        prompt_len=parent.prompt_len,
        max_len=parent.max_len,
        stop_ids=parent.stop_ids,
        banned=parent.banned,
        background=parent.background,
        lease=parent.lease.fork(count) if count else state.memory.lease(),
        computed=count,
        planned=count,
        charged=max(count, parent.charged if shared is not None else 0),
        serial=True,
        first_scheduled=parent.first_scheduled,
        preemptions=parent.preemptions,
        fork_of=parent.seq_id if state.memory.recurrent and shared is None else -1,
    )
    seq.published = min(parent.published, count // state.memory.block_size)
    seq.keys = parent.keys[: seq.published]
    seq.move_to(Status.RUNNING)
    insort(state.running, seq, key=lambda s: s.order)
    return seq


def _complete(state: State, group: BeamGroup) -> list[Emission]:
    """End a search that is done: its best hypotheses are the choices."""
    best = [group.ended[h] for h in group.search.hypotheses]
    preemptions = group.leader.preemptions
    _release(state, group)
    owner = group.owner
    now = state.clock()
    prompt_logprobs = tuple(owner.prompt_logprobs) or None
    history = told.told() if (told := group.leader.history) is not None else None
    emissions = []
    for choice in group.open:
        if choice >= len(best):
            emissions.append(_ended(group, choice, FinishReason.ERROR, _too_few(len(best))))
            continue
        found = best[choice]
        output = ChoiceOutput(
            request_id=owner.request.request_id,
            choice=choice,
            token_ids=found.tokens,
            logprobs=None if found.logprobs is None else found.logprobs.tokens(),
            prompt_logprobs=prompt_logprobs,
            finish_reason=found.reason,
            stop_token=found.stop_token,
            cached_tokens=owner.cached_of_prompt,
            timings=RequestTimings(
                received=owner.received,
                first_scheduled=group.first_scheduled,
                first_token=group.first_token,
                finished=now,
                preemptions=preemptions,
                computed=owner.take_compute(),
            ),
            history=history,
        )
        prompt_logprobs = history = None
        emissions.append(Emission(owner.client, output))
    return emissions


def end(
    state: State,
    group: BeamGroup,
    reason: FinishReason,
    *,
    choice: int | None = None,
    error: RequestError | None = None,
) -> list[Emission]:
    """End a search, or one of its choices: the others are still searched."""
    ended = [c for c in group.open if choice is None or c == choice]
    group.open = [c for c in group.open if c not in ended]
    if not group.open:
        _release(state, group)
    return [_ended(group, c, reason, error) for c in ended]


def _release(state: State, group: BeamGroup) -> None:
    state.groups.remove(group)
    for beam in group.live:
        if beam.seq.status is not Status.FINISHED:
            state.retire(beam.seq)


def _ended(
    group: BeamGroup, choice: int, reason: FinishReason, error: RequestError | None
) -> Emission:
    owner = group.owner
    output = ChoiceOutput(
        request_id=owner.request.request_id, choice=choice, finish_reason=reason, error=error
    )
    return Emission(owner.client, output)


def _too_few(count: int) -> RequestError:
    if not count:
        text = "the output constraint leaves no token for any beam"
        return RequestError(ErrorKind.BAD_REQUEST, text, None)
    text = (
        f"the constraint on the output leaves only {count} different output(s); n must not exceed"
    )
    return RequestError(ErrorKind.BAD_REQUEST, f"{text} that", "n")


def too_large(state: State, request: EngineRequest, known: int, max_len: int) -> str | None:
    """Why the beams of a request could not run even alone; None if they can.

    Args:
        known: tokens of its prompt.
        max_len: tokens that a beam may have.
    """
    memory, width = state.memory, request.sampling.beam_width
    if width > state.limits.max_num_seqs:
        return (
            f"beam_width ({width}) exceeds the {state.limits.max_num_seqs} sequences that may run"
        )
    shared = memory.shareable(known)
    need = beam_blocks(memory.block_size, width, shared, max_len) * memory.block_size
    if need <= memory.capacity_tokens:
        return None
    return (
        f"{width} beams of up to {max_len} tokens may take {need} tokens of the KV cache, which "
        f"holds {memory.capacity_tokens}; lower max_tokens or beam_width"
    )
