"""Admission control: which requests may run or wait, counted in tokens, and when others may retry.

The cost of a request is its prompt plus the expected length of its answer: a learned mean, capped
by max_tokens. A prefix shared with a request in flight counts once, because it is computed and
held once.

A request is admitted when its cost fits into the free part of the KV cache plus a queue bounded in
tokens. Otherwise it is rejected with 429 and a Retry-After from the measured rate. A request that
returns at that time is admitted: new requests leave room for reservations that are due before
them. No client is rejected because of another's queue while its own queue is within its share of
the bound. The queue as a whole never exceeds `_max_waiting`. The number of choices in flight and
the bytes of buffered answers are bounded in the same way (`Shares`).

Runs in the API process, on its event loop; nothing here blocks or takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError, bad_request
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import EngineInfo
from tidemill.generation.caller import Caller
from tidemill.metrics.admission import ModelAdmissionMetrics
from tidemill.server.admission.answers import NOTHING_HELD, AnswerSize
from tidemill.server.admission.background import UNCOUNTED, Uncounted
from tidemill.server.admission.estimates import AnswerLengths, PrefillSpeed, Throughput
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.admission.prefixes import Held, Prefixes
from tidemill.server.admission.reservations import Fingerprint, Reservations
from tidemill.server.admission.shares import Shares
from tidemill.server.errors import Problem, Rejection, reject
from tidemill.telemetry.trace import AdmissionView, Trace

QUEUE_SECONDS = 60.0
"""Without --max-queue-tokens, the queue holds at most the tokens computed in this time, and at most
the capacity of the KV cache."""

FIRST_DRAIN_SECONDS = 10.0
"""Assumed time in which a full queue drains, until the rate has been measured."""


@dataclass(slots=True)
class _Client:
    """A client with requests in flight: its waiting tokens, and the prompt tokens among them."""

    weight: float
    waiting: int = 0
    queued_prompt: int = 0
    tickets: int = 0


@dataclass(slots=True)
class _Part:
    """One prompt of a ticket. Costs are in tokens.

    Attributes:
        prompt: its tokens, without those of shared prefixes.
        choices, open: number of choices, and number of unfinished ones.
        expected: estimated tokens of each choice.
        ahead: prompt tokens ahead of it when it was admitted.
    """

    prompt: int
    choices: int
    expected: int
    ahead: float
    open: int
    started: bool = False
    generated: int = 0

    @property
    def cost(self) -> int:
        """Estimated tokens of prompt and answers."""
        return self.prompt + self.tokens

    @property
    def tokens(self) -> int:
        """Tokens of its answers: generated or expected, whichever is more."""
        return max(self.choices * self.expected, self.generated)


@dataclass(slots=True)
class Ticket:
    """An admitted request. Call `progress` for every output and `close` exactly once.

    Attributes:
        size, taken: estimated size of its answer, and the bytes charged so far.
    """

    caller: Caller
    parts: list[_Part]
    held: list[Held]
    admitted: float
    size: AnswerSize
    taken: int
    _admission: Admission = field(repr=False)

    def end_choice(self, prompt: int) -> None:
        """A choice of a prompt (by index) has ended; `close` ends the remaining ones."""
        self._admission._end_choices(self, self.parts[prompt], 1)

    def progress(self, prompt: int, tokens: int) -> None:
        """A prompt (by index) got `tokens` more tokens."""
        self._admission._progress(self, self.parts[prompt], tokens)

    def close(self, lengths: Sequence[int] = ()) -> None:
        """The request has ended; `lengths` has the tokens of each choice that was not cancelled."""
        self._admission._close(self, lengths)


class Admission:
    """Tracks admitted requests and rejects what exceeds the bounds.

    Args:
        options: bounds.
        info: returns the settings that the engine resolved at start.
        metrics: updated on every change.
        choices: choices in flight over all requests, of all models.
        answers: bytes of buffered answers, of all models.
        clock: monotonic seconds.

    Attributes:
        leaving: no request is admitted, and streams that another server can go on with end.
    """

    def __init__(
        self,
        options: AdmissionOptions,
        info: Callable[[], EngineInfo],
        metrics: ModelAdmissionMetrics,
        *,
        choices: Shares,
        answers: Shares,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.options = options
        self._info = info
        self._metrics = metrics
        self._choices = choices
        self._answers = answers
        self.leaving = False
        self._clock = clock
        self._clients: dict[str, _Client] = {}
        self._waiting = 0
        self._queued_prompt = 0
        self._running = 0
        self._started = 0
        self._lengths = AnswerLengths()
        self._rate = Throughput()
        self._prefill_speed = PrefillSpeed()
        self._reservations = Reservations()
        self._prefixes = Prefixes()

    # -- bounds ------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Capacity of the KV cache in tokens."""
        info = self._info()
        return info.num_blocks * info.block_size

    @property
    def queue_bound(self) -> int:
        """Tokens that may wait."""
        if self.options.max_queue_tokens is not None:
            return self.options.max_queue_tokens
        rate = self._rate.rate(self._clock())
        if rate is None:
            return self.capacity
        info = self._info()
        least = max(info.max_model_len, 8 * info.max_step_tokens)
        return min(self.capacity, max(least, int(rate * QUEUE_SECONDS)))

    @property
    def active(self) -> int:
        """Choices in flight."""
        return self._choices.total

    @property
    def waiting_tokens(self) -> int:
        """Tokens of admitted requests without a first token."""
        return self._waiting

    @property
    def predicted_wait(self) -> float:
        """Seconds until a further request would begin to be computed: the queued prompts', where
        there is room for them; the queue's, where there is none. 0 while nothing was measured."""
        if self._free_tokens() >= self._waiting:
            return self._prefill_speed.seconds(self._queued_prompt) or 0.0
        return self._waiting / self._drain()

    def describe(self) -> str:
        """The effective bounds, as one line for the log."""
        options, info = self.options, self._info()
        bound = f"queue: {self.queue_bound} tokens may wait beside {self.capacity} in the KV cache"
        if options.max_queue_tokens is None:
            why = f" (once measured, at most what is computed in {QUEUE_SECONDS:.0f} s)"
        else:
            why = " (--max-queue-tokens)"
        rest = f", {info.max_num_seqs} sequences at once; beyond that 429 with a Retry-After"
        return bound + why + rest

    def expected_tokens(self, caller: Caller, max_tokens: int) -> int:
        """The expected length of one answer of at most `max_tokens`, as learned."""
        return self._lengths.expected(caller.client, max_tokens)

    # -- requests ----------------------------------------------------------------------------

    def admit(
        self,
        caller: Caller,
        prompts: Sequence[tuple[int, ...]],
        sampling: Sequence[SamplingParams],
        size: AnswerSize = NOTHING_HELD,
        trace: Trace | None = None,
    ) -> Ticket | Uncounted:
        """Admit or reject a request; one in the background is always admitted.

        Args:
            caller: the client, its weight and its deadline.
            prompts, sampling: token ids and resolved parameters, prompt by prompt.
            size: estimated size of the answer.
            trace: is told what was decided, and on what grounds.

        Raises:
            Rejection: 429 with a Retry-After in seconds; 503 while it is `leaving`.
            TidemillError: kind BAD_REQUEST when the choices exceed the bound even alone.
        """
        if self.leaving:
            raise reject(
                503,
                "this server's engine is being drained; send the request to another server, or "
                "here again in some seconds",
                code="draining",
                headers={"Retry-After": "5"},
            )
        if caller.background:
            return UNCOUNTED
        now = self._clock()
        shared = self._info().prefix_caching
        held = self._prefixes.look_up(caller.cache_salt, prompts) if shared else []
        tokens = [len(prompt) for prompt in prompts]
        for i, part in enumerate(held):
            tokens[i] -= part.shared_tokens
        parts = [
            _Part(t, width, self._lengths.expected(caller.client, s.max_tokens or 1), 0.0, width)
            for t, s in zip(tokens, sampling, strict=True)
            for width in (s.width,)
        ]
        choices = sum(part.choices for part in parts)
        if choices > self._choices.bound:
            raise too_many_choices(choices, self._choices.bound)
        cost = sum(part.cost for part in parts)
        fingerprint = (caller.client, hash((tuple(prompts), choices, sampling[0].max_tokens)))
        claimed = self._reservations.claim(fingerprint, now)
        reason, earliest = self._check(caller, parts, cost, size, claimed=claimed)
        if trace is not None:
            trace.admission = self._view(caller, parts, held, cost, reason)
        if reason is not None:
            self._reject(caller, fingerprint, reason, cost, earliest, now)
        if trace is not None:
            trace.admitted = monotonic()
        return self._enter(caller, parts, held, cost, size, now)

    def _view(
        self,
        caller: Caller,
        parts: list[_Part],
        held: list[Held],
        cost: int,
        reason: str | None,
    ) -> AdmissionView:
        return AdmissionView(
            decision=reason or "admitted",
            prompt=sum(part.prompt for part in parts),
            shared=sum(one.shared_tokens for one in held),
            expected=sum(part.tokens for part in parts),
            waiting=self._waiting,
            bound=self.queue_bound,
            free=self._free_tokens(),
            ahead=round(self._ahead(caller, cost, self._share(caller))),
        )

    def _check(
        self, caller: Caller, parts: list[_Part], cost: int, size: AnswerSize, *, claimed: bool
    ) -> tuple[str | None, float]:
        """Reason for a rejection (None: admit), and seconds until admission is possible."""
        choices = sum(part.choices for part in parts)
        for reason, shares, amount in (
            ("choices", self._choices, choices),
            ("answers", self._answers, _held_bytes(size, parts)),
        ):
            excess = shares.excess(caller.client, amount, caller.weight)
            if excess and not (claimed and shares.total + amount <= 2 * shares.bound):
                tokens = (self._running + self._waiting) / max(1, shares.total)
                return reason, excess * tokens / self._drain()
        bound, room = self.queue_bound, self._free_tokens()
        client = self._clients.get(caller.client)
        mine = client.waiting if client is not None else 0
        share = self._share(caller)
        total = self._waiting + cost
        fits = (
            self._waiting == 0
            # The cheap test first: under a flood most requests fail it.
            or (total <= room + bound and total + self._reserved_tokens() <= room + bound)
            or (mine + cost <= share * (room + bound) and total <= self._max_waiting(room, bound))
            or (claimed and total <= self._max_waiting(room, bound))
        )
        if not fits:
            over = min(total, (mine + cost) / share) - room - bound
            return "queue", over / self._drain()
        late = self._lateness(caller, parts, cost, share)
        if late > 0.0 and not (claimed and late < (self.options.ttft_objective or 0.0)):
            return "objective", late
        return None, 0.0

    def _lateness(self, caller: Caller, parts: list[_Part], cost: int, share: float) -> float:
        """Seconds by which the request would miss the objective or its deadline; 0 if it would not.

        A request that would miss the objective even on an idle engine is judged by its queue time.
        """
        objective = self.options.ttft_objective
        if objective is None:
            return 0.0
        prompt = sum(part.prompt for part in parts)
        own = self._prefill_speed.seconds(prompt) or 0.0
        if self._free_tokens() >= self._waiting + cost:
            wait = self._prefill_speed.seconds(self._prompt_ahead(caller, prompt)) or 0.0
        else:
            wait = self._ahead(caller, cost, share) / self._drain()
        late = wait + own - max(objective, own)
        if caller.deadline is not None:
            late = max(late, wait + own - (caller.deadline - monotonic()))
        return max(0.0, late)

    def _reject(
        self,
        caller: Caller,
        fingerprint: Fingerprint,
        reason: str,
        cost: int,
        earliest: float,
        now: float,
    ) -> None:
        seconds = self._reservations.wait(fingerprint, now)
        if seconds is None:
            rate = self._drain() * self._share(caller)
            seconds = self._reservations.reserve(
                fingerprint, now, cost=cost, earliest=earliest, rate=rate
            )
        self._metrics.refused(reason, caller.client, seconds)
        if reason == "choices":
            why = (
                f"{self.active} choices are being generated and at most {self._choices.bound} may "
                "be, this request's included"
            )
        elif reason == "answers":
            why = f"answers of {self._answers.total} bytes are in flight"
        elif reason == "objective":
            why = "it would not have its first token in time (--ttft-objective-ms)"
        else:
            why = f"{self._waiting} tokens wait and the queue is full"
        raise _rejection(f"the server is busy: {why}; try again in {seconds:.0f} s", seconds)

    def _enter(
        self,
        caller: Caller,
        parts: list[_Part],
        held: list[Held],
        cost: int,
        size: AnswerSize,
        now: float,
    ) -> Ticket:
        prompt = sum(part.prompt for part in parts)
        ahead = self._prompt_ahead(caller, prompt)
        for part in parts:
            part.ahead = ahead
        client = self._clients.setdefault(caller.client, _Client(caller.weight))
        client.weight = caller.weight
        client.waiting += cost
        client.queued_prompt += prompt
        client.tickets += 1
        self._waiting += cost
        self._queued_prompt += prompt
        for prefix in held:
            self._prefixes.hold(prefix)
        choices = sum(part.choices for part in parts)
        self._choices.take(caller.client, choices, caller.weight)
        taken = _held_bytes(size, parts)
        self._answers.take(caller.client, taken, caller.weight)
        ticket = Ticket(caller, parts, held, now, size, taken, self)
        self._rate.begin(now)
        self._update_metrics(caller.client)
        return ticket

    def _progress(self, ticket: Ticket, part: _Part, tokens: int) -> None:
        now = self._clock()
        computed = tokens
        before = part.cost
        if not part.started:
            self._leave_queue(ticket, part)
            part.started = True
            computed += part.prompt
            self._running += before
            self._started += part.open
            if len(ticket.parts) == 1:
                self._prefill_speed.note(round(part.prompt + part.ahead), now - ticket.admitted)
            self._update_metrics(ticket.caller.client)
        part.generated += tokens
        self._running += part.cost - before
        self._rate.note(computed, now)
        more = ticket.size.per_token * (part.cost - before)
        self._answers.take(ticket.caller.client, more, ticket.caller.weight)
        ticket.taken += more

    def progress_together(self, tickets: Sequence[Ticket], times: Sequence[float]) -> None:
        """Each of these requests of one prompt, all of which have begun, got a token at each of
        these times: as `progress` for one after the other. For who simulates them."""
        for now in times:
            self._rate.note_each(len(tickets), now)
        for ticket in tickets:
            [part] = ticket.parts
            before = part.cost
            part.generated += len(times)
            more = part.cost - before
            self._running += more
            self._answers.take(
                ticket.caller.client, ticket.size.per_token * more, ticket.caller.weight
            )
            ticket.taken += ticket.size.per_token * more

    def _end_choices(self, ticket: Ticket, part: _Part, count: int) -> None:
        part.open -= count
        if part.started:
            self._started -= count
        self._choices.give_back(ticket.caller.client, count)

    def _close(self, ticket: Ticket, lengths: Sequence[int]) -> None:
        name = ticket.caller.client
        client = self._clients[name]
        for part in ticket.parts:
            self._end_choices(ticket, part, part.open)
            if part.started:
                self._running -= part.cost
            else:
                self._leave_queue(ticket, part)
        for prefix in ticket.held:
            self._prefixes.release(prefix)
        for length in lengths:
            self._lengths.note(name, length)
        client.tickets -= 1
        self._answers.give_back(name, ticket.taken)
        if client.tickets == 0:
            del self._clients[name]
        if not self._clients:
            self._rate.pause(self._clock())
        self._update_metrics(name)

    def _leave_queue(self, ticket: Ticket, part: _Part) -> None:
        client = self._clients[ticket.caller.client]
        client.waiting -= part.cost
        client.queued_prompt -= part.prompt
        self._waiting -= part.cost
        self._queued_prompt -= part.prompt

    # -- figures -----------------------------------------------------------------------------

    def _free_tokens(self) -> int:
        """Tokens of KV cache that running requests leave free. While more choices wait than may run
        at once, only the share of the waiting tokens that has a free sequence slot."""
        memory = max(0, self.capacity - self._running - self._prefixes.orphaned)
        seats = max(0, self._info().max_num_seqs - self._started)
        waiting = self.active - self._started
        return memory if waiting < seats else min(memory, self._waiting * seats // max(1, waiting))

    def _max_waiting(self, room: int, bound: int) -> int:
        """Bound on waiting tokens when requests return with a reservation.

        Requests that start together end together. Until then nothing leaves the queue, while
        reservations for as many tokens as are running may fall due.
        """
        return room + bound + max(bound, self._running)

    def _reserved_tokens(self) -> float:
        """Tokens of reservations that are due before a new request would run."""
        return self._reservations.due(self._clock() + self._waiting / self._drain())

    def _share(self, caller: Caller) -> float:
        """The client's part of the queue while every active client uses its own."""
        others = sum(c.weight for n, c in self._clients.items() if n != caller.client)
        return caller.weight / (caller.weight + others)

    def _ahead(self, caller: Caller, cost: int, share: float) -> float:
        """Waiting tokens that fair scheduling runs before a new request of the client."""
        client = self._clients.get(caller.client)
        mine = client.waiting if client is not None else 0
        return min(float(self._waiting), (mine + cost) / share - cost)

    def _prompt_ahead(self, caller: Caller, prompt: int) -> float:
        """Like `_ahead`, in prompt tokens."""
        client = self._clients.get(caller.client)
        mine = client.queued_prompt if client is not None else 0
        return min(float(self._queued_prompt), (mine + prompt) / self._share(caller) - prompt)

    def _drain(self) -> float:
        """Tokens per second at which the queue drains."""
        rate = self._rate.rate(self._clock())
        return rate if rate is not None else max(1.0, self.queue_bound / FIRST_DRAIN_SECONDS)

    def _update_metrics(self, name: str) -> None:
        client = self._clients.get(name)
        self._metrics.waiting(self._waiting, name, client.waiting if client is not None else 0)
        self._metrics.bound.set(self.queue_bound)


def too_many_choices(choices: int, bound: int) -> TidemillError:
    """The error of one request with more choices than the server's bound."""
    return bad_request("n", f"n asks for {choices} choices over all prompts; at most {bound}")


def _held_bytes(size: AnswerSize, parts: Sequence[_Part]) -> int:
    """Estimated bytes of an answer that are buffered."""
    return size.fixed + size.per_token * sum(part.tokens for part in parts)


def _rejection(message: str, seconds: float) -> Rejection:
    headers = {"Retry-After": f"{max(1.0, seconds):.0f}"}
    return Rejection(Problem(429, "rate_limit_error", message, None, "overloaded", headers))
