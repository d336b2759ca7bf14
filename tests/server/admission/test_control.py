"""Admission in simulated time: an engine that serves what was admitted at a fixed rate."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from itertools import count

import pytest
from helpers.scripted_engine import fake_info

from tidemill.base.errors import TidemillError
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import Caller
from tidemill.metrics.admission import MAX_TENANTS, AdmissionMetrics
from tidemill.server.admission.control import Admission, Ticket
from tidemill.server.admission.estimates import AnswerLengths, Throughput
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.admission.shares import Shares
from tidemill.server.errors import Rejection

CAPACITY = 64 * 32
PROMPT, OUTPUT = 100, 20
RATE = 600.0  # tokens per second: five requests


@dataclass
class World:
    """A server whose engine runs four requests at a time, each at a quarter of the rate."""

    options: AdmissionOptions = field(default_factory=AdmissionOptions)
    now: float = 0.0
    done: dict[str, int] = field(default_factory=dict)
    refusals: list[tuple[str, float]] = field(default_factory=list)
    kept: int = 0
    broken: int = 0

    def __post_init__(self) -> None:
        self.admission = Admission(
            self.options,
            lambda: fake_info(max_num_seqs=4, max_step_tokens=32),
            AdmissionMetrics().of("tiny"),
            answers=Shares(2**29),
            choices=Shares(4096),
            clock=lambda: self.now,
        )
        self._events: list[tuple[float, int, str, int, bool]] = []
        self._order = count()
        self._waiting: deque[tuple[str, Ticket]] = deque()
        self._ends: list[tuple[float, int, str, Ticket]] = []
        self.most_waiting = 0

    def at(self, time: float, client: str, number: int, *, told: bool = False) -> None:
        heapq.heappush(self._events, (time, next(self._order), client, number, told))

    def run(
        self, until: float, *, come_back: float = 1.0, rng: random.Random | None = None
    ) -> None:
        """`come_back`: the part of those refused that does as it is told."""
        rng = rng or random.Random(0)
        while self._events or self._ends:
            next_event = self._events[0][0] if self._events else float("inf")
            next_end = self._ends[0][0] if self._ends else float("inf")
            self.now = min(next_event, next_end)
            if self.now > until:
                return
            if next_end <= next_event:
                _, _, client, ticket = heapq.heappop(self._ends)
                ticket.progress(0, OUTPUT - 1)
                ticket.close([OUTPUT])
                self.done[client] = self.done.get(client, 0) + 1
            else:
                self._ask(*heapq.heappop(self._events)[2:], come_back, rng)
            self._serve()

    def _ask(
        self, client: str, number: int, told: bool, come_back: float, rng: random.Random
    ) -> None:
        prompt = (number,) * PROMPT
        try:
            ticket = self.admission.admit(
                Caller(client), [prompt], [SamplingParams(max_tokens=OUTPUT)]
            )
        except Rejection as rejection:
            assert rejection.problem.status == 429 and rejection.problem.code == "overloaded"
            seconds = float(rejection.problem.headers["Retry-After"])
            assert seconds >= 1 and seconds == int(seconds)
            self.refusals.append((client, seconds))
            self.broken += told
            if rng.random() < come_back:
                self.at(self.now + seconds + rng.uniform(0, 0.2), client, number, told=True)
            return
        self.kept += told
        self._waiting.append((client, ticket))
        self.most_waiting = max(self.most_waiting, self.admission.waiting_tokens)

    def _serve(self) -> None:
        while self._waiting and len(self._ends) < 4:
            client, ticket = self._waiting.popleft()
            ticket.progress(0, 1)
            end = self.now + 4 * (PROMPT + OUTPUT) / RATE
            heapq.heappush(self._ends, (end, next(self._order), client, ticket))


def overload(world: World, seconds: float, times: float, client: str = "a") -> None:
    rng = random.Random(7)
    time, number = 0.0, 0
    while time < seconds:
        time += rng.expovariate(times * RATE / (PROMPT + OUTPUT))
        number += 1
        world.at(time, client, number)


@pytest.mark.parametrize("come_back", [1.0, 0.5])
def test_retry_after_is_honoured_and_the_engine_stays_busy(come_back: float) -> None:
    world = World()
    overload(world, 60.0, 10.0)
    world.run(400.0, come_back=come_back)
    assert world.kept + world.broken > 100
    assert world.kept / (world.kept + world.broken) >= 0.8
    # Five requests a second, all along: what is told to come back keeps the engine busy.
    possible = min(400.0, 600.0 * come_back) * RATE / (PROMPT + OUTPUT)
    assert world.done["a"] >= 0.85 * possible


def test_goodput_when_nobody_comes_back() -> None:
    world = World()
    overload(world, 60.0, 10.0)
    world.run(60.0, come_back=0.0)
    assert world.done["a"] >= 0.9 * 60 * RATE / (PROMPT + OUTPUT)


@dataclass
class Steps:
    """An engine of 32 seats: in each step its streams have a token and the first prompt a piece, so
    that what began together ends together."""

    piece: int
    unread: deque[Ticket] = field(default_factory=deque)
    read: int = 0
    streams: list[tuple[Ticket, int]] = field(default_factory=list)  # and the step it ends in
    steps: int = 0

    def step(self) -> float:
        """Compute one; returns its seconds."""
        self.steps += 1
        rows, count = len(self.streams), 0
        for ticket, end in self.streams:
            ticket.progress(0, 1)
            if end == self.steps:
                ticket.close([OUTPUT])
        self.streams = [stream for stream in self.streams if stream[1] > self.steps]
        if self.unread and len(self.streams) < 32:
            count = min(PROMPT - self.read, self.piece if rows else 512)
            self.read += count
            if self.read == PROMPT:
                self.read = 0
                ticket = self.unread.popleft()
                ticket.progress(0, 1)
                self.streams.append((ticket, self.steps + OUTPUT - 1))
        return 0.02 + 0.001 * rows + (0.04 if rows else 0.0) + 0.002 * count


@pytest.mark.parametrize("piece", [8, 16, 32, 512])
def test_retry_after_is_honoured_when_many_begin_and_end_together(piece: int) -> None:
    now = 0.0
    admission = Admission(
        AdmissionOptions(max_queue_tokens=1500),
        lambda: fake_info(max_num_seqs=32, num_blocks=2048),
        AdmissionMetrics().of("tiny"),
        answers=Shares(2**29),
        choices=Shares(4096),
        clock=lambda: now,
    )
    engine = Steps(piece)
    requests = [(0.03 * i, i, False) for i in range(5000)]
    kept: list[bool] = []
    while now < 120.0:
        while requests[0][0] <= now:
            _, number, told = heapq.heappop(requests)
            prompt = (number,) * PROMPT
            try:
                ticket = admission.admit(Caller(), [prompt], [SamplingParams(max_tokens=OUTPUT)])
            except Rejection as rejection:
                seconds = float(rejection.problem.headers["Retry-After"])
                heapq.heappush(requests, (now + seconds, number, True))
                kept += [False] * told
            else:
                engine.unread.append(ticket)
                kept += [True] * told
        now += engine.step()
    assert len(kept) > 100
    assert sum(kept) >= 0.9 * len(kept)


def test_the_queue_is_bounded_in_tokens_and_empties() -> None:
    world = World(AdmissionOptions(max_queue_tokens=1000))
    for i in range(2000):
        world.at(0.0, f"c{i}", i)
    world.run(5.0, come_back=0.0)
    assert world.most_waiting <= CAPACITY + 2 * 1000
    world.run(1e6, come_back=0.0)
    admission = world.admission
    assert admission.waiting_tokens == admission._running == admission._queued_prompt == 0
    assert admission.active == 0 and not admission._clients
    assert len(admission._reservations) <= 2000
    world.now += 1e5
    admission._reservations._expire(world.now)
    assert len(admission._reservations) == 0 and not admission._reservations._reserved
    assert admission._reservations.due(1e9) == 0


def test_another_clients_flood_refuses_nobody_else() -> None:
    world = World()
    overload(world, 30.0, 10.0)
    for second in range(2, 30):
        world.at(float(second), "b", 10**6 + second)
    world.run(30.0, come_back=0.0)
    assert not [r for r in world.refusals if r[0] == "b"]
    assert len(world.refusals) > 500


def test_an_idle_server_takes_what_exceeds_every_bound() -> None:
    world = World(AdmissionOptions(max_queue_tokens=10))
    params = SamplingParams(max_tokens=30, n=8)
    prompts = [(i,) * 200 for i in range(30)]
    ticket = world.admission.admit(Caller("a"), prompts, [params] * 30)
    assert world.admission.active == 240
    with pytest.raises(Rejection):
        world.admission.admit(Caller("a"), [(1,)], [SamplingParams(max_tokens=5)])
    for i in range(30):
        ticket.progress(i, 8)
    ticket.close([30] * 240)
    assert world.admission._running == 0
    with pytest.raises(TidemillError, match="at most 4096"):
        world.admission.admit(Caller("a"), prompts * 18, [params] * 540)


def test_choices_are_bounded_by_client() -> None:
    admission = Admission(
        AdmissionOptions(max_queue_tokens=10**6),
        lambda: fake_info(max_num_seqs=4),
        AdmissionMetrics().of("tiny"),
        answers=Shares(2**29),
        choices=Shares(4096),
    )
    params = SamplingParams(max_tokens=5, n=16)

    def ask(client: str, number: int, prompts: int, n: int) -> Ticket:
        tokens = [(number, i) for i in range(prompts)]
        return admission.admit(
            Caller(client), tokens, [SamplingParams(max_tokens=5, n=n)] * prompts
        )

    greedy = ask("greedy", 0, 256, 16)
    with pytest.raises(Rejection, match="4096 choices are being generated"):
        ask("greedy", 1, 1, 1)
    # The others have their share all the same, be it in choices or in inputs.
    others = [ask("a", i, 1, 1) for i in range(25)]
    others.append(ask("b", 0, 1000, 1))
    with pytest.raises(Rejection):
        ask("b", 1, 1000, 1)
    # It gets its places back as choices end, whatever became of the rest of its request.
    for prompt in range(100):
        greedy.progress(prompt, 16)
        for _ in range(params.n):
            greedy.end_choice(prompt)
    ask("greedy", 2, 1, 16).close()
    greedy.close()
    for ticket in others:
        ticket.close()
    assert admission.active == admission._started == admission._running == 0


def test_retry_after_of_choices_says_when_there_is_room() -> None:
    now = 0.0
    admission = Admission(
        AdmissionOptions(max_queue_tokens=10**6),
        lambda: fake_info(max_num_seqs=64),
        AdmissionMetrics().of("tiny"),
        answers=Shares(2**29),
        choices=Shares(40),
        clock=lambda: now,
    )
    ticket = admission.admit(Caller("a"), [(1, 2)], [SamplingParams(max_tokens=100, n=40)])
    for second in range(1, 51):  # 40 tokens a second
        now = float(second)
        ticket.progress(0, 40)
    with pytest.raises(Rejection) as refused:
        admission.admit(Caller("a"), [(3, 4)], [SamplingParams(max_tokens=100, n=20)])
    # Half of 4000 tokens of 40 a second, and its own.
    assert 50 <= float(refused.value.problem.headers["Retry-After"]) <= 120


def test_a_prompt_that_many_share_is_counted_once() -> None:
    admission = Admission(
        AdmissionOptions(max_queue_tokens=100),
        lambda: fake_info(max_num_seqs=64),
        AdmissionMetrics().of("tiny"),
        answers=Shares(2**29),
        choices=Shares(4096),
    )
    system, params = (7,) * 1500, SamplingParams(max_tokens=1)
    shared = 1500 // 64 * 64
    rest = 1501 - shared + 1
    tickets = [admission.admit(Caller("a"), [(*system, i)], [params]) for i in range(15)]
    assert admission.waiting_tokens == shared + 15 * rest
    with pytest.raises(Rejection):  # another key's cache is another one
        admission.admit(Caller("a", cache_salt="b"), [(*system, 1)], [params])
    tickets.pop(0).close()
    assert admission._free_tokens() == CAPACITY - shared
    for ticket in tickets:
        ticket.progress(0, 1)
        ticket.close([1])
    assert admission._running == admission.waiting_tokens == 0
    assert admission._free_tokens() == CAPACITY


def test_the_objective_refuses_what_would_come_too_late() -> None:
    world = World(AdmissionOptions(ttft_objective=2.0))
    overload(world, 60.0, 3.0)
    world.run(60.0, come_back=0.0)
    # Four run and a second's worth waits: without the objective a whole cache's worth would.
    assert world.admission.waiting_tokens < 4 * RATE
    assert world.done["a"] > 0.8 * 60 * RATE / (PROMPT + OUTPUT)


def test_answers_lengths_are_learned_per_client() -> None:
    lengths = AnswerLengths()
    assert lengths.expected("a", 1000) == 256 and lengths.expected("a", 10) == 10
    for _ in range(20):
        lengths.note("a", 30)
        lengths.note("b", 500)
    assert lengths.expected("a", 1000) == 30 and lengths.expected("b", 1000) == 500
    assert 30 < lengths.expected("new", 1000) < 500
    for i in range(3000):
        lengths.note(f"x{i}", 5)
    assert len(lengths._clients) <= 1024


def test_throughput_counts_time_with_work() -> None:
    rate = Throughput()
    assert rate.rate(5.0) is None
    for second in range(10):
        rate.begin(second * 100.0)
        for tick in range(10):
            rate.note(50, second * 100.0 + tick / 10 + 0.1)
        rate.pause(second * 100.0 + 1.0)
    assert rate.rate(1000.0) == pytest.approx(500, rel=0.05)
    rate.begin(2000.0)
    stalled = rate.rate(2030.0)
    assert stalled is not None and stalled < 150


def test_tenants_labels_are_bounded() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    metrics = AdmissionMetrics(registry).of("tiny")
    for i in range(500):
        metrics.waiting(10 * i, f"t{i}", 10)
        metrics.refused("queue", f"t{i}", 5.0)
    text = generate_latest(registry).decode()
    assert text.count("tidemill_tenant_queue_tokens{") == MAX_TENANTS + 1
    others = (500 - MAX_TENANTS) * 10
    assert f'tidemill_tenant_queue_tokens{{model="tiny",tenant="(others)"}} {others}.0' in text
    assert "tidemill_retry_after_seconds_bucket" in text
