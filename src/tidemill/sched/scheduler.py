"""Scheduler: turns requests into step plans, and step results into outputs.

There are no prefill and decode phases: in every step each running sequence advances its computed
tokens toward its known tokens. `submit` queues a request's choices. `plan` admits them when blocks
are free and plans a row for each running sequence. `commit` accepts the sampled tokens and returns
the outputs for clients. `rollback` undoes a plan whose step failed. All calls come from one thread.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as TypingSequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.base.log import get_logger
from tidemill.contract.history import PreemptionCause
from tidemill.contract.moves import MoveReport, PeerLoad
from tidemill.contract.plan import StepPlan, StepResult
from tidemill.contract.request import (
    POOLINGS,
    ChoiceOutput,
    EngineRequest,
    FinishReason,
    Pooling,
    RequestError,
    adapters_key,
)
from tidemill.contract.sampling import MAX_CHOICES
from tidemill.contract.speculation import AUTO, BY_REQUEST, DRAFTERS, OFF, drafters_of
from tidemill.contract.wire import EngineStats
from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import root_digest
from tidemill.sched.adapters import check_adapters, invocation_start, virtual_tokens
from tidemill.sched.commit import append_token, commit_row, finish, finish_reason_of
from tidemill.sched.constraint import Constraint
from tidemill.sched.cost import Load, StepCost
from tidemill.sched.history import SequenceHistory
from tidemill.sched.memory_pressure import MemoryPressure
from tidemill.sched.pipelining import independent
from tidemill.sched.plan_builder import InFlightRow, PlanBuilder
from tidemill.sched.planning import build, undo
from tidemill.sched.policy import Limits, order_key
from tidemill.sched.sequence import ADAPTERS, PROGRAM, BeamGroup, Emission, RequestState, Sequence
from tidemill.sched.speculation.chosen import NO_CHOICE, Chosen
from tidemill.sched.state import State

if TYPE_CHECKING:
    from tidemill.memory.tiers import Tiers
    from tidemill.sched.decode_run import DecodeRun
    from tidemill.sched.plain_rows import PlainRow
    from tidemill.sched.speculation.controller import Controller

_log = get_logger(__name__)

_COUNTERS = ("steps", "step_tokens", "step_rows", "generated", "expired", "queue_expired")


@dataclass(slots=True)
class _InFlightStep:
    """A plan in flight, with the state needed to commit it or roll it back.

    Attributes:
        plan, rows_in_flight: the plan and the state of its rows.
        load: the features for its cost.
        predicted: predicted seconds; 0 before any step was measured.
        ahead: it was planned before the result of the step before.
        chosen: the drafts that it was to verify.
        plain: rows that were planned together, before the others.
    """

    plan: StepPlan
    rows_in_flight: list[InFlightRow]
    load: Load
    predicted: float
    ahead: bool = False
    chosen: Chosen = NO_CHOICE
    plain: list[PlainRow] = field(default_factory=list)


class Scheduler:
    """Decides what every step computes.

    Args:
        memory: allocation of KV blocks.
        limits: bounds.
        eos_token_ids: the model's end tokens.
        weights_digest, kv_dtype: part of every block's key.
        tiers: where blocks go that leave the device; None: nowhere.
        clock: seconds; requests' deadlines are on it. Nothing in `sched/` reads another clock, so
            that it runs in simulated time as well.

    Attributes:
        ended_with_adapters: requests with adapters that have ended; whoever counts the adapters'
            references removes them.
    """

    def __init__(
        self,
        memory: KVMemory,
        limits: Limits,
        eos_token_ids: Iterable[int] = (),
        *,
        weights_digest: str = "",
        kv_dtype: str = "",
        tiers: Tiers | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.memory = memory
        self.limits = limits
        self.max_len = min(limits.max_model_len, memory.capacity_tokens)
        self._eos = frozenset(eos_token_ids)
        self._identity = (weights_digest, kv_dtype)
        self._state = State(memory, limits, clock)
        if tiers is not None:
            from tidemill.sched.bringing import Bringing

            remote = None
            if tiers.peer_loads is not None:
                from tidemill.sched.remote_prefill import RemotePrefills  # few have peers

                remote = RemotePrefills(self._state, tiers)
            self._state.bringing = Bringing(tiers, memory, self._state.cost, clock, remote)
        self._awaits_moves = False
        self._memory_pressure = MemoryPressure(limits)
        self._requests: dict[tuple[int, str], RequestState] = {}
        self._in_flight: deque[_InFlightStep] = deque()
        self._deadlines: list[tuple[float, int, bool, RequestState]] = []
        self._num_awaiting = 0
        self.ended_with_adapters: list[RequestState] = []
        self._receipts = 0
        self._next_step = 0
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._seconds = {"predicted": 0.0, "measured": 0.0, "last_predicted": 0.0}
        self._last = (0, 0)
        self._uncounted = 0.0  # seconds of steps that completed no token

    # -- requests ----------------------------------------------------------------------------

    def submit(self, request: EngineRequest, client: int = 0) -> list[Emission]:
        """Queue a request.

        Returns:
            Final outputs: of a request that cannot be served (its error names the field), or of
            choices whose resumed tokens are already complete.
        """
        if (client, request.request_id) in self._requests:
            # A final output would end the stream of the first one. Clients reject duplicates
            # before they send.
            _log.error("duplicate request id %r: the second request is dropped", request.request_id)
            return []
        try:
            self._validate(request)
        except TidemillError as error:
            return rejections(client, request, error)
        owner = self._open(request, client)
        if not owner.ready:
            return []
        emissions = []
        for seq in list(owner.choices):
            reason = finish_reason_of(seq) if seq.generated else None
            if reason is not None:
                stop = seq.tokens[-1] if reason is FinishReason.STOP else None
                emissions.append(finish(self._state, seq, reason, stop_token=stop))
        self._forget_if_done(owner)
        return emissions

    def end_tokens(self, request: EngineRequest) -> frozenset[int]:
        """Token ids that end the request's choices."""
        eos = frozenset() if request.sampling.ignore_eos else self._eos
        return frozenset(request.sampling.stop_token_ids) | eos

    def is_waiting_for_program(self, client: int, request_id: str) -> bool:
        """True while the request has not ended and waits for `release`; safe from any thread."""
        owner = self._requests.get((client, request_id))
        return owner is not None and PROGRAM in owner.awaits

    def release(
        self,
        client: int,
        request_id: str,
        constraints: TypingSequence[Constraint],
        error: TidemillError | None = None,
    ) -> list[Emission]:
        """Queue a request whose output program is compiled, or end it with the compile error.

        Args:
            client, request_id: identify the request; one that has ended is ignored.
            constraints: one per choice, in their initial state.
            error: why compiling failed; None if it succeeded.
        """
        owner = self._requests.get((client, request_id))
        if owner is None or PROGRAM not in owner.awaits:
            return []
        if error is not None:
            failure = RequestError(error.kind, error.message, error.param, error.retryable)
            return self._end(client, request_id, None, FinishReason.ERROR, failure)
        sampling = owner.request.sampling
        emissions = []
        now = self._state.clock()
        for seq in owner.open_choices:
            if seq.history is not None:
                seq.history.ready = now
            seq.constraint = constraints[seq.choice]
            seq.serial = True
            if self.limits.jump_ahead and owner.beams is None:
                seq.jumps = sampling.logprobs is None
                seq.forces = not seq.jumps and self._may_speculate(owner.request)
            if seq.forces:
                self._open_speculation()
        self._arrived(owner, PROGRAM)
        for seq in list(owner.open_choices):
            emissions += self._replay(seq)
        self._forget_if_done(owner)
        return emissions

    def adapters_loaded(
        self, client: int, request_id: str, slot: int, error: TidemillError | None = None
    ) -> list[Emission]:
        """Queue a request whose adapters are in memory, or end it with why they cannot be.

        Args:
            client, request_id: identify the request; see `awaits_adapters`.
            slot: what its rows name; see `Executor.load_adapters`.
            error: why loading failed; None if it succeeded.
        """
        owner = self._requests[client, request_id]
        if error is not None:
            failure = RequestError(error.kind, error.message, error.param, error.retryable)
            return self._end(client, request_id, None, FinishReason.ERROR, failure)
        owner.adapter_slot = slot
        for seq in owner.choices:
            if seq.history is not None:
                seq.history.adapters_ready = self._state.clock()
        self._arrived(owner, ADAPTERS)
        return []

    def awaits_adapters(self, client: int, request_id: str) -> bool:
        """True while the request has not ended and waits for `adapters_loaded`."""
        owner = self._requests.get((client, request_id))
        return owner is not None and ADAPTERS in owner.awaits

    def _arrived(self, owner: RequestState, what: str) -> None:
        """Something that a request waited for is there; the last of it queues the request."""
        owner.awaits.remove(what)
        if owner.ready:
            owner.held = []
            self._num_awaiting -= 1
            self._enqueue(owner)

    def _replay(self, seq: Sequence) -> list[Emission]:
        """Advance a resumed choice's constraint over the tokens it already has."""
        tokens, seq.tokens = seq.tokens, seq.tokens[: seq.prompt_len]
        reason, stop = None, None
        try:
            for token in tokens[seq.prompt_len :]:
                stop, reason = append_token(seq, token)
        except TidemillError as error:
            failure = RequestError(error.kind, error.message, error.param, error.retryable)
            return [finish(self._state, seq, FinishReason.ERROR, error=failure)]
        if reason is None:
            return []
        return [finish(self._state, seq, reason, stop_token=stop)]

    def _validate(self, request: EngineRequest) -> None:
        sampling = request.sampling.validate(self.limits.vocab_size)
        if sampling.seed is None:
            raise bad_request("seed", "the request reached the engine without a seed")
        prompt = request.prompt_token_ids
        if not prompt:
            raise bad_request("prompt", "the prompt has no tokens; give at least one")
        check_adapters(request)
        vocab = self.limits.vocab_size
        if vocab is not None and not (min(prompt) >= 0 and max(prompt) < vocab):
            raise bad_request("prompt", f"prompt token ids must be between 0 and {vocab - 1}")
        if request.pooling is not None:
            self._validate_pooling(request, request.pooling)
        elif not self.limits.generates:
            raise bad_request("model", "this model does not generate: it has no output layer")
        elif (front := virtual_tokens(request)) + len(prompt) + 1 > self.max_len:
            vectors = f" and its adapter puts {front} vectors in front" if front else ""
            raise bad_request(
                "prompt",
                f"the prompt has {len(prompt)} tokens{vectors}; with at least one token of output "
                f"that exceeds the context of {self.max_len} tokens; shorten the prompt",
            )
        if sampling.beam_search:
            from tidemill.sched import beams  # few requests need it

            known = virtual_tokens(request) + len(prompt)
            longest = min(self.max_len, known + (sampling.max_tokens or self.max_len))
            if why := beams.too_large(self._state, request, known, longest):
                raise bad_request("beam_width", why)
        expected = request.prediction
        if expected and vocab is not None and not (min(expected) >= 0 and max(expected) < vocab):
            raise bad_request("prediction", f"token ids must be between 0 and {vocab - 1}")
        self._validate_speculation(request.speculation)
        if not 0.0 < request.weight < math.inf:
            raise bad_request("weight", f"a tenant's weight must be above 0, got {request.weight}")
        if request.resume and len(request.resume) != sampling.n:
            raise bad_request(
                "resume", f"resume has {len(request.resume)} entries for {sampling.n} choices"
            )
        most = min(self.max_len, len(prompt) + (sampling.max_tokens or self.max_len))
        for tokens in request.resume:
            if len(prompt) + len(tokens) > most:
                raise bad_request("resume", "more tokens are known than the answer may have")
            if tokens and vocab is not None and not (min(tokens) >= 0 and max(tokens) < vocab):
                raise bad_request("resume", f"token ids must be between 0 and {vocab - 1}")

    def _validate_speculation(self, asked: str | None) -> None:
        if asked is None or asked in (OFF, AUTO):
            return
        if asked not in DRAFTERS:
            names = ", ".join(BY_REQUEST)
            raise bad_request("speculation", f"speculation must be one of {names}, got {asked!r}")
        if self.limits.speculation is not None and asked not in self.limits.drafters:
            there = ", ".join((OFF, AUTO, *self.limits.drafters))
            raise bad_request(
                "speculation",
                f"no drafter {asked!r} is loaded (see --speculate): give one of {there}",
            )

    def _validate_pooling(self, request: EngineRequest, pooling: Pooling) -> None:
        prompt, most = request.prompt_token_ids, self.max_len - virtual_tokens(request)
        if self.limits.whole_prompts:
            most = min(most, self.limits.max_step_tokens)
        if len(prompt) > most:
            raise bad_request(
                "input", f"the input has {len(prompt)} tokens; at most {most} are taken: shorten it"
            )
        if pooling.kind not in POOLINGS:
            raise bad_request("pooling", f"pooling must be one of {', '.join(POOLINGS)}")
        if not 0 <= pooling.second < max(len(prompt), 1):
            raise bad_request("pooling", "the second text begins outside of the input")
        sampling = request.sampling
        if sampling.n != 1 or sampling.prompt_logprobs is not None or not request.program.free:
            raise bad_request("pooling", "a request with pooling generates nothing")

    def _open(self, request: EngineRequest, client: int) -> RequestState:
        weights, kv_dtype = self._identity
        identity, start = adapters_key(request.adapters), invocation_start(request)
        owner = RequestState(
            client=client,
            request=request,
            root=root_digest(
                salt=request.cache_salt,
                weights=weights,
                kv_dtype=kv_dtype,
                adapter=None if start else identity or None,
            ),
            received=self._state.clock(),
        )
        if start:  # before it is invoked an activated adapter's blocks are the base's
            owner.media, owner.adapter_start = ((start, identity.encode()),), start
            owner.boundary = start
        sampling = request.sampling
        if sampling.prompt_logprobs is not None:
            owner.prompt_logprobs = [None] * len(request.prompt_token_ids)
        stops = self.end_tokens(request)
        owner.virtual_tokens = virtual_tokens(request)
        if any(use.prefix for use in request.adapters):
            owner.boundary = owner.virtual_tokens
        prompt = (*(0,) * owner.virtual_tokens, *request.prompt_token_ids)
        room = self.max_len if sampling.max_tokens is None else len(prompt) + sampling.max_tokens
        if request.pooling is not None:
            room = len(prompt) + 1  # never reached: a pooled request samples nothing
        searched = sampling.beam_search
        for choice in range(1 if searched else sampling.n):
            resumed = request.resume[choice] if request.resume and not searched else ()
            owner.choices.append(
                Sequence(
                    seq_id=next(self._state.seq_ids),
                    owner=owner,
                    choice=choice,
                    order=order_key(request, self._receipts, choice),
                    tokens=[*prompt, *resumed],
                    prompt_len=len(prompt),
                    max_len=room if request.pooling is not None else min(self.max_len, room),
                    stop_ids=stops,
                    banned=tuple(sorted(stops)) if sampling.min_tokens else (),
                    unbounded=room >= self.max_len and not sampling.min_tokens,
                    drafters=self._drafters(request),
                    background=request.background,
                    history=SequenceHistory() if request.explain else None,
                )
            )
        self._receipts += 1
        if request.explain:
            self._state.explain(owner)
        if searched:
            from tidemill.sched import beams  # few requests need it

            beams.open_group(self._state, owner)
        if not request.program.free:
            owner.awaits.add(PROGRAM)
        if request.adapters:
            owner.awaits.add(ADAPTERS)
        if owner.ready:
            self._enqueue(owner)
        else:
            owner.held = list(owner.choices)
            self._num_awaiting += 1
        self._requests[owner.key] = owner
        self._state.lines[request.background].tenants.enter(request.tenant, request.weight)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, self._receipts, False, owner))
        if request.start_by is not None and not any(request.resume):
            heapq.heappush(self._deadlines, (request.start_by, self._receipts, True, owner))
        return owner

    def _drafters(self, request: EngineRequest) -> tuple[str, ...]:
        """What may draft for a request."""
        if request.pooling is not None or request.sampling.beam_search:
            return ()  # of a beam's next token all beams decide
        limits, expected = self.limits, bool(request.prediction)
        drafters = drafters_of(
            limits.speculation, limits.drafters, request.speculation, expected=expected
        )
        if drafters:
            self._open_speculation()
        return drafters

    def _may_speculate(self, request: EngineRequest) -> bool:
        return self.limits.speculation is not None and request.speculation != OFF

    def _open_speculation(self) -> None:
        if self._state.speculation is None:
            from tidemill.sched.speculation.controller import Controller

            adaptive = not self.limits.always_draft
            self._state.speculation = Controller(self._state.cost, adaptive=adaptive)

    def _enqueue(self, owner: RequestState) -> None:
        """Queue the first choice, which computes the prompt. The others are held until then and
        fork from it; resumed choices are queued at once."""
        choices = owner.open_choices
        if owner.request.resume and owner.beams is None:
            for seq in choices:
                self._state.queue_of(seq).push(seq)
        else:
            self._state.queue_of(choices[0]).push(choices[0])
            owner.held = choices[1:]

    def cancel(
        self,
        request_id: str,
        choice: int | None = None,
        reason: FinishReason = FinishReason.CANCELLED,
        client: int = 0,
    ) -> list[Emission]:
        """End a choice of a request (None: all choices); unknown or ended ones are ignored."""
        return self._end(client, request_id, choice, reason, None)

    def drop_client(self, client: int) -> None:
        """End all requests of a client that disconnected."""
        for key in [key for key in self._requests if key[0] == client]:
            self.cancel(key[1], client=client)

    def end_all(self, reason: FinishReason, error: RequestError | None = None) -> list[Emission]:
        """End every request, because the engine closes."""
        emissions: list[Emission] = []
        for client, request_id in list(self._requests):
            emissions += self._end(client, request_id, None, reason, error)
        return emissions

    def expire(self) -> list[Emission]:
        """End requests whose deadline has passed, queued or running, and requests that have waited
        for their first step longer than they may."""
        now = self._state.clock()
        emissions: list[Emission] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            *_, to_start, owner = heapq.heappop(self._deadlines)
            if self._requests.get(owner.key) is not owner:
                continue
            if to_start and any(seq.first_scheduled is not None for seq in owner.choices):
                continue
            self._counts["queue_expired" if to_start else "expired"] += 1
            error = _expiry(owner, now, to_start=to_start)
            emissions += self._end(*owner.key, None, FinishReason.ERROR, error)
        return emissions

    def _end(
        self,
        client: int,
        request_id: str,
        choice: int | None,
        reason: FinishReason,
        error: RequestError | None,
    ) -> list[Emission]:
        owner = self._requests.get((client, request_id))
        if owner is None:
            return []
        if owner.beams is not None:
            from tidemill.sched import beams  # few requests need it

            emissions = beams.end(self._state, owner.beams, reason, choice=choice, error=error)
            self._forget_if_done(owner)
            return emissions
        ended = [seq for seq in owner.open_choices if choice is None or seq.choice == choice]
        # In reverse, so that no choice is promoted to leader just before it is ended.
        emissions = [finish(self._state, seq, reason, error=error) for seq in reversed(ended)]
        self._forget_if_done(owner)
        return emissions[::-1]

    def _forget_if_done(self, owner: RequestState) -> None:
        if not owner.open_choices and self._requests.pop(owner.key, None) is not None:
            self._num_awaiting -= not owner.ready
            if owner.request.adapters:
                self.ended_with_adapters.append(owner)
            for seq in owner.choices:
                # A request and its choices refer to one another: what they hold would wait for
                # the garbage collector, while the memory of its grammar is counted.
                seq.constraint = None
            tenants = self._state.lines[owner.request.background].tenants
            tenants.leave(owner.request.tenant, self._state.clock())
            if len(self._deadlines) > 2 * len(self._requests) + 64:
                self._drop_old_deadlines()
            if not self._requests:
                self._flush_moves()  # the next plan may be hours away

    def _drop_old_deadlines(self) -> None:
        """Remove deadlines of ended requests, so that they do not accumulate until they pass."""
        live = [d for d in self._deadlines if self._requests.get(d[-1].key) is d[-1]]
        self._deadlines = live
        heapq.heapify(live)

    # -- steps -------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step; None if there is no work or `Limits.depth` plans are in flight."""
        if len(self._in_flight) >= self.limits.depth:
            return None
        last = self._in_flight[-1].plan.step_id if self._in_flight else None
        state = self._state
        builder = build(state, self._next_step, last)
        if not builder.num_rows and builder.preempted and not self._in_flight:
            builder = build(state, self._next_step, last)
        self._begin_moves(builder)
        if not builder.num_rows:
            return None
        plan = builder.plan(tuple(state.preempted_to_send), tuple(state.finished_to_send))
        state.preempted_to_send.clear()
        state.finished_to_send.clear()
        self._next_step += 1
        cost = state.cost
        predicted = cost.predict(builder.load) if cost.ready else 0.0
        self._in_flight.append(
            _InFlightStep(
                *(plan, builder.rows_in_flight, builder.load, predicted),
                ahead=last is not None,
                chosen=builder.chosen,
                plain=builder.plain,
            )
        )
        return plan

    def _begin_moves(self, builder: PlanBuilder) -> None:
        """Begin moves of blocks, before the rows are computed that may write to blocks evicted."""
        if (bringing := self._state.bringing) is None:
            return
        self._flush_moves()
        self._awaits_moves = bool(bringing.tiers.loads) and not (
            builder.num_rows or self._in_flight
        )

    def _flush_moves(self) -> None:
        if (bringing := self._state.bringing) is not None:
            in_flight = self._in_flight[-1].plan.step_id if self._in_flight else None
            bringing.tiers.flush(in_flight)

    def moved(self, report: MoveReport) -> list[Emission]:
        """Moves of blocks have ended: queue the sequences again that waited for them."""
        assert self._state.bringing is not None
        for seq in self._state.bringing.take(report):
            self._state.queue_of(seq).push(seq)
        return []

    def commit(self, plan: StepPlan, result: StepResult) -> list[Emission]:
        """Apply the results of the oldest plan in flight.

        Returns:
            Outputs for clients.

        Raises:
            RuntimeError: the plan or the result is not of the oldest plan in flight.
        """
        step = self._in_flight[0]
        if step.plan.step_id != plan.step_id or result.step_id != plan.step_id:
            raise RuntimeError(f"step {plan.step_id} is not the oldest step in flight")
        self._in_flight.popleft()
        self._memory_pressure.succeeded()
        self._state.limits = self._memory_pressure.limits
        # A chunk whose layers are computed over several steps is counted in the last of them.
        plain = step.plain
        tokens = len(plain) + sum(row.count + row.drafts for row in step.rows_in_flight)
        seconds = result.timings.forward + result.timings.sampling
        of_a_token = (seconds + self._uncounted) / tokens if tokens else 0.0
        self._uncounted = 0.0 if tokens else self._uncounted + seconds
        emissions: list[Emission] = []
        if plain:
            emissions = self._commit_plain(plain, of_a_token)
        for in_flight, row in zip(step.rows_in_flight, result.rows, strict=True):
            in_flight.seq.owner.compute_seconds += of_a_token * (in_flight.count + in_flight.drafts)
            emission = commit_row(self._state, in_flight, row)
            if emission is not None:
                emissions.append(emission)
                self._counts["generated"] += len(emission.output.token_ids)
                if emission.output.finish_reason is not None:
                    self._forget_if_done(in_flight.seq.owner)
        if self._state.groups:
            for group in list(self._state.groups):
                emissions += self._advance(group)
        self._counts["steps"] += 1
        self._counts["step_tokens"] += tokens
        rows = len(plain) + len(plan.rows)
        self._counts["step_rows"] += rows
        self._last = (tokens, rows)
        self._learn(step, seconds)
        if self._state.speculation is not None:
            self._learn_drafts(self._state.speculation, step, result)
        return emissions

    def _commit_plain(self, rows: list[PlainRow], of_a_token: float) -> list[Emission]:
        state = self._state
        assert state.plain_rows is not None
        for row in rows:
            row.seq.owner.compute_seconds += of_a_token
        found = state.plain_rows.commit(state, rows, lambda seq: self._forget_if_done(seq.owner))
        self._counts["generated"] += len(found)
        return found

    def plan_together(self, token: Callable[[int, int], int]) -> None:
        """From now on plan rows that give streams their next token together: plans and results do
        not have them. For who knows that `token` is what a sequence samples at a position."""
        from tidemill.sched.plain_rows import PlainRows  # no engine needs it

        self._state.plain_rows = PlainRows(token)

    @property
    def newest(self) -> tuple[Load, int]:
        """Of the newest plan in flight: its work, and the rows that were planned together."""
        step = self._in_flight[-1]
        return step.load, len(step.plain)

    def decode_run(self) -> DecodeRun | None:
        """The steps from the one in flight on, if they only give every running sequence its next
        token; see `sched.decode_run`. For who knows what steps return before they are computed."""
        if self.limits.depth < 2 or len(self._in_flight) != 1 or self._num_awaiting:
            return None
        if len(self._requests) != len(self._state.running):
            return None
        from tidemill.sched.decode_run import run_of  # no engine needs it

        step = self._in_flight[0]
        if step.plain and step.rows_in_flight:
            return None
        return run_of(self._state, step.plain or step.rows_in_flight)

    def follow(
        self,
        run: DecodeRun,
        predicted: TypingSequence[float],
        seconds: TypingSequence[float],
        token: Callable[[int, int], int],
        learned: StepCost | None = None,
    ) -> StepPlan:
        """Commit the step in flight and those after it, as if each had been planned and committed,
        and plan the next one.

        Args:
            run: what `decode_run` returned; nothing has happened since.
            predicted: what was predicted of each step, and of the one that is planned.
            seconds: what each step took, in order.
            token: what a sequence samples at a position.
            learned: the costs with these steps observed, where somebody has done that.
        """
        first, count = self._in_flight.popleft(), len(seconds)
        last_id, rows = first.plan.step_id + count - 1, len(run.rows)
        run.apply(count, last_id, token)
        figures = self._seconds
        if learned is not None:
            self._state.cost = learned
        for step, (foreseen, took) in enumerate(zip(predicted, seconds, strict=False)):
            if foreseen > 0.0:
                figures["predicted"] += foreseen
                figures["measured"] += took
            if learned is None:
                self._state.cost.observe(run.load(step), took)
        figures["last_predicted"] = predicted[count - 1]
        share = (sum(seconds) + self._uncounted) / rows
        self._uncounted = 0.0
        for row in first.plain or first.rows_in_flight:
            row.seq.owner.compute_seconds += share
        counts = self._counts
        counts["steps"] += count
        for name in ("step_tokens", "step_rows", "generated"):
            counts[name] += count * rows
        self._last = (rows, rows)
        self._next_step = last_id + 1
        plan = self.plan()
        step_planned = self._in_flight[0]
        assert plan is not None and len(plan.rows) + len(step_planned.plain) == rows
        step_planned.predicted, step_planned.ahead = predicted[count], True
        return plan

    def _advance(self, group: BeamGroup) -> list[Emission]:
        from tidemill.sched import beams

        emissions = beams.advance(self._state, group)
        self._counts["generated"] += sum(len(e.output.token_ids) for e in emissions)
        self._forget_if_done(group.owner)
        return emissions

    def end_stuck(self) -> list[Emission]:
        """End the youngest beam search where nothing can be planned: since it was received, the
        cache has shrunk below what its beams take."""
        groups = self._state.groups
        if not groups:
            return []
        group = max(groups, key=lambda group: group.leader.order[2:])
        text = "the KV cache is too small for the beams; lower max_tokens or beam_width"
        error = RequestError(ErrorKind.RESOURCE, text)
        return self._end(*group.owner.key, None, FinishReason.ERROR, error)

    def _learn(self, step: _InFlightStep, seconds: float) -> None:
        figures = self._seconds
        figures["last_predicted"] = step.predicted
        if step.predicted > 0.0:
            figures["predicted"] += step.predicted
            figures["measured"] += seconds
        self._state.cost.observe(step.load, seconds)

    def _learn_drafts(
        self, controller: Controller, step: _InFlightStep, result: StepResult
    ) -> None:
        from tidemill.sched.speculation.controller import StepDone

        rows = step.rows_in_flight
        controller.step_done(
            StepDone(
                step.load,
                result,
                step.chosen,
                now=self._state.clock(),
                ahead=step.ahead,
                goes_on=self.has_work,
                pure=all(row.sample and row.count == 1 for row in rows),
            )
        )

    def rollback(self, plan: StepPlan) -> None:
        """Undo the newest plan in flight, because its step failed.

        Raises:
            RuntimeError: the plan is not the newest one in flight.
        """
        step = self._in_flight[-1]
        if step.plan.step_id != plan.step_id:
            raise RuntimeError(f"step {plan.step_id} is not the newest step in flight")
        self._in_flight.pop()
        state = self._state
        undo(state, step.rows_in_flight)
        state.preempted_to_send[:0] = plan.preempted
        state.finished_to_send[:0] = plan.finished

    def shrink(self, plan: StepPlan) -> None:
        """Halve the step size after a step ran out of memory, and preempt the youngest sequences
        beyond the new `max_num_seqs`. No plan may be in flight."""
        state = self._state
        self._memory_pressure.tighten(plan.num_tokens)
        state.limits = self._memory_pressure.limits
        while len(state.running) > state.limits.max_num_seqs:
            last = max(state.running, key=lambda seq: seq.order[1:])
            state.preempt(last, PreemptionCause.OUT_OF_MEMORY)

    def fail(self, plan: StepPlan, error: RequestError) -> list[Emission]:
        """End the choices that have a row in a plan that was rolled back."""
        rows = {row.seq_id for row in plan.rows}
        emissions = []
        for owner in list(self._requests.values()):
            hit = [seq for seq in owner.open_choices if seq.seq_id in rows]
            if hit and owner.beams is not None:
                emissions += self._end(*owner.key, None, FinishReason.ERROR, error)
                continue
            emissions += [finish(self._state, s, FinishReason.ERROR, error=error) for s in hit]
            self._forget_if_done(owner)
        return emissions

    # -- observation -------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True if a request has not ended and does not wait for its output program or adapters, nor
        all of them for blocks of lower tiers."""
        return len(self._requests) > self._num_awaiting and not self._awaits_moves

    @property
    def has_requests(self) -> bool:
        """True if a request has not ended."""
        return bool(self._requests)

    def constraint(self, seq_id: int) -> Constraint | None:
        """The constraint of a sequence that has a row in a plan in flight; None without one."""
        for step in self._in_flight:
            for in_flight in step.rows_in_flight:
                if in_flight.seq.seq_id == seq_id:
                    return in_flight.seq.constraint
        return None

    @property
    def overlap_seconds(self) -> float | None:
        """Predicted seconds of the step in flight, if the next step can be planned before its
        results; None: it cannot.

        It can if every row decodes one token without a constraint, and none is a beam. Their
        sampled tokens matter to the next step only as inputs, which the executor already has. A
        constraint's next mask depends on the sampled token, a beam's next token on the candidates
        of all, and a prompt's blocks can be shared only once computed. A row with drafts may get
        several tokens, and drafts are proposed after known tokens alone: a stream with a drafter is
        launched ahead only where none will be.

        Where the executor computes two steps at the same time, the next one is launched at once (0)
        if there is something to compute that needs no result.
        """
        if self.limits.depth < 2 or len(self._in_flight) != 1:
            return None
        if self.limits.pipelined and independent(self._state):
            return 0.0
        [step] = self._in_flight
        for in_flight in step.rows_in_flight:
            seq = in_flight.seq
            if not in_flight.sample or in_flight.count != 1 or seq.serial:
                return None
            if seq.drafters and seq.needs_result:
                return None
        return step.predicted or None

    @property
    def cost(self) -> StepCost:
        """What it has learned of steps' times."""
        return self._state.cost

    def peer_load(self) -> PeerLoad:
        """What there is to compute, for engines that might ask for prompts. On any thread."""
        from tidemill.sched.remote_prefill import load_of  # few are asked

        return load_of(self._state)

    @property
    def explains(self) -> bool:
        """A request has come that is to be explained."""
        return bool(self._state.roots)

    def note_grammar(self, client: int, request_id: str, *, known: bool) -> None:
        """For its explanation: the request's program was compiled before, or is to be compiled."""
        owner = self._requests.get((client, request_id))
        for seq in [] if owner is None else owner.open_choices:
            if seq.history is not None:
                seq.history.grammar_known = known

    def note_masks(self, seq_ids: set[int], seconds: float) -> None:
        """For explanations: computing the masks of these rows of plans in flight took so long."""
        for step in self._in_flight:
            for in_flight in step.rows_in_flight:
                history = in_flight.seq.history
                if history is not None and in_flight.seq.seq_id in seq_ids:
                    history.mask_seconds += seconds / len(seq_ids)

    def sequences(self) -> Iterable[Sequence]:
        """All sequences that have not ended."""
        for owner in self._requests.values():
            yield from owner.open_choices

    def stats(
        self,
        *,
        step_seconds: float = 0.0,
        compute_seconds: float = 0.0,
        last_step_seconds: float = 0.0,
    ) -> EngineStats:
        """Gauges and counters now; the caller adds the times it measured."""
        state, counts = self._state, self._counts
        bringing = state.bringing
        held = 0 if bringing is None else len(bringing.waiting)
        held += sum(len(owner.held) for owner in self._requests.values() if owner.held)
        return EngineStats(
            queued=sum(len(line.queue) for line in state.lines) + held,
            running=len(state.running),
            blocks_used=self.memory.num_used,
            blocks_total=self.memory.num_blocks,
            steps=counts["steps"],
            step_tokens=counts["step_tokens"],
            step_rows=counts["step_rows"],
            step_seconds=step_seconds,
            compute_seconds=compute_seconds,
            prompt_tokens=state.prompt_tokens,
            cached_tokens=state.cached_tokens,
            generated_tokens=counts["generated"],
            preemptions=state.preemptions,
            resumed_cached_tokens=state.resumed.cached,
            resumed_brought_tokens=state.resumed.brought,
            resumed_computed_tokens=state.resumed.computed,
            forced_tokens=state.forced,
            drafted_tokens=state.drafted,
            drafts_accepted=state.drafts_accepted,
            speculation=None if state.speculation is None else state.speculation.figures.tell(),
            tiers=() if bringing is None else bringing.tiers.tell(),
            last_step_tokens=self._last[0],
            last_step_rows=self._last[1],
            last_step_seconds=last_step_seconds,
            waiting_tokens=state.queue.tokens,
            tenants=len(state.tenants),
            expired=counts["expired"],
            queue_expired=counts["queue_expired"],
            predicted_seconds=self._seconds["predicted"],
            measured_seconds=self._seconds["measured"],
            last_predicted_seconds=self._seconds["last_predicted"],
        )

    def check(self) -> None:
        """Verify every invariant of the scheduler; for tests, and for the engine when it is idle.

        Raises:
            AssertionError: an invariant is violated (a bug in Tidemill).
        """
        self._state.check()
        placed = {seq.seq_id for seq in self._state.running}
        for line in self._state.lines:
            placed |= {seq.seq_id for seq in line.queue}
        loading = False
        if (bringing := self._state.bringing) is not None:
            placed |= bringing.waiting.keys()
            loading = bool(bringing.tiers.loads)
        for owner in self._requests.values():
            placed |= {seq.seq_id for seq in owner.held}
            assert owner.open_choices, f"request {owner.key} has ended and is still registered"
        requests = [owner.request for owner in self._requests.values()]
        tenants = {(request.background, request.tenant) for request in requests}
        active = sum(len(line.tenants) for line in self._state.lines)
        assert active == len(tenants), "a tenant without a request is active"
        known = {seq.seq_id for seq in self.sequences()}
        assert placed == known, "an open sequence is in no queue, or an ended one is still queued"
        if not self._requests and not loading:
            assert self.memory.num_used == 0, "KV blocks are leaked: held without a request"


def rejections(client: int, request: EngineRequest, error: TidemillError) -> list[Emission]:
    """Final outputs with this error for all choices of a request."""
    choices = range(max(1, min(request.sampling.n, MAX_CHOICES)))
    return [_rejection(client, request, choice, error) for choice in choices]


def _rejection(client: int, request: EngineRequest, choice: int, error: TidemillError) -> Emission:
    wire = RequestError(error.kind, error.message, error.param, error.retryable)
    output = ChoiceOutput(
        request_id=request.request_id,
        choice=choice,
        finish_reason=FinishReason.ERROR,
        error=wire,
    )
    return Emission(client, output)


def _expiry(owner: RequestState, now: float, *, to_start: bool) -> RequestError:
    request = owner.request
    waited = now - (request.arrival or owner.received)
    if to_start:
        text = (
            f"the request waited {waited:.1f} s in the queue, longer than --max-queue-time allows; "
            "try again later"
        )
        return RequestError(ErrorKind.OVERLOADED, text, None, True)
    text = f"the request timed out {waited:.1f} s after its arrival; set a longer timeout"
    return RequestError(ErrorKind.TIMEOUT, text, "timeout", True)
