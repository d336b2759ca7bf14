"""A scheduler in simulated time: steps take what a cost function says, nothing is computed."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, pairwise

from helpers.drive import EOS

from tidemill.contract.plan import RowResult, StepPlan, StepResult, StepTimings
from tidemill.contract.request import EngineRequest
from tidemill.engine.core import DEPTH, LAUNCH_FRACTION
from tidemill.memory.lease import KVMemory
from tidemill.sched.cost import Load
from tidemill.sched.policy import Limits
from tidemill.sched.scheduler import Scheduler

Cost = Callable[[Load], float]


def small_model(load: Load) -> float:
    """Seconds of a step, after a 0.6B model's on two cores: memory and arithmetic overlap."""
    memory = 0.025 + 3.5e-6 * load.reach
    arithmetic = 1.2e-3 * load.tokens + 0.8e-6 * load.pairs
    return max(memory, arithmetic) + 0.3 * min(memory, arithmetic)


def fast_arithmetic(load: Load) -> float:
    """The same where matrix units compute: a few tokens behind a long context cost its reading."""
    return 0.044 + 5.1e-6 * load.reach + 0.45e-3 * load.tokens + 0.07e-6 * load.pairs


@dataclass
class Seen:
    """What a request's client saw, in simulated seconds."""

    sent: float
    tokens: list[float] = field(default_factory=list)
    ended: float | None = None
    computed: float = 0.0

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in pairwise(self.tokens)]


@dataclass(slots=True)
class _Step:
    """A plan in flight, and when it begins and ends."""

    plan: StepPlan
    begins: float
    ends: float


class Simulation:
    """Scheduler, cost function and clock.

    Attributes:
        now: simulated seconds.
        seen: per request id.
        loads: per step, what it computed and how long it took.
    """

    def __init__(
        self,
        *,
        cost: Cost = small_model,
        noise: float = 0.03,
        num_blocks: int = 4096,
        max_num_seqs: int = 256,
        max_step_tokens: int = 512,
        max_model_len: int = 40_000,
        max_itl: float | None = None,
        layers: int = 0,
        seed: int = 0,
    ) -> None:
        self.now = 0.0
        self.seen: dict[str, Seen] = {}
        self.steps: list[tuple[StepPlan, float]] = []
        self.on_end: Callable[[str], None] = lambda name: None
        self._cost = cost
        self._noise = noise
        self._layers = layers
        self._random = random.Random(seed)
        self._arrivals: list[tuple[float, int, EngineRequest]] = []
        self._order = count()
        self._in_flight: deque[_Step] = deque()
        self.scheduler = Scheduler(
            KVMemory((num_blocks,), 32),
            Limits(
                max_num_seqs,
                max_step_tokens,
                max_model_len,
                depth=DEPTH,
                max_itl=max_itl,
                layers=layers,
            ),
            (EOS,),
            clock=lambda: self.now,
        )

    def at(self, time: float, request: EngineRequest) -> None:
        """A request that comes at a time."""
        heapq.heappush(self._arrivals, (time, next(self._order), request))

    def run(self, until: float = 1e9) -> None:
        """Step until nothing is left, or the time has come."""
        while self.now < until:
            self._receive()
            if not self._in_flight and not self._launch():
                assert not self.scheduler.has_work, "work is left and no step is planned"
                if not self._arrivals:
                    return
                self.now = max(self.now, self._arrivals[0][0])
                continue
            self._launch_next()
            self._land()

    def _receive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now:
            time, _, request = heapq.heappop(self._arrivals)
            self.seen[request.request_id] = Seen(time)
            self.scheduler.submit(request)

    def _launch(self) -> bool:
        """Plan a step, which begins now or when the one in flight has ended."""
        plan = self.scheduler.plan()
        if plan is None:
            return False
        load = Load()
        for row in plan.rows:
            cut = row.layers
            share = 1.0 if cut is None else (cut.end - cut.begin) / self._layers
            load.add(row.start, row.count, share)
        seconds = self._cost(load) * self._random.lognormvariate(0, self._noise)
        begins = self._in_flight[-1].ends if self._in_flight else self.now
        self._in_flight.append(_Step(plan, begins, begins + seconds))
        self.steps.append((plan, seconds))
        return True

    def _launch_next(self) -> None:
        """As the engine does: shortly before the step in flight should end."""
        seconds = self.scheduler.overlap_seconds
        if seconds is None:
            return
        step = self._in_flight[0]
        due = max(self.now, step.begins + LAUNCH_FRACTION * seconds)
        if due < step.ends:
            self.now = due
            self._receive()
            self._launch()

    def _land(self) -> None:
        """The oldest step in flight ends."""
        step = self._in_flight.popleft()
        self.now = step.ends
        rows = tuple(
            RowResult(seq_id=row.seq_id, token_ids=(7,) if row.sample else ())
            for row in step.plan.rows
        )
        seconds = step.ends - step.begins
        result = StepResult(
            step_id=step.plan.step_id, rows=rows, timings=StepTimings(0.0, seconds, 0.0, seconds)
        )
        ended = []
        for emission in self.scheduler.commit(step.plan, result):
            output = emission.output
            seen = self.seen[output.request_id]
            seen.tokens += [self.now] * len(output.token_ids)
            if output.finish_reason is not None:
                assert output.timings is not None
                seen.computed += output.timings.computed
                seen.ended = self.now
                ended.append(output.request_id)
        for name in ended:
            self.on_end(name)


def prompt(length: int, seed: int) -> list[int]:
    """Random token ids, none of them an end token."""
    rng = random.Random(seed)
    return [rng.randrange(10, 90) for _ in range(length)]


def quantile(values: list[float], q: float) -> float:
    """The q-quantile, nearest above."""
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


def gaps_between(sim: Simulation, names: list[str], start: float, end: float) -> list[float]:
    """Gaps between tokens of these requests that ended within a time."""
    gaps = []
    for name in names:
        tokens = sim.seen[name].tokens
        gaps += [b - a for a, b in pairwise(tokens) if start < b < end]
    return gaps
