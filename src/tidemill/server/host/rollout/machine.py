"""The rollout of one name: a canary in steps that goes on, is promoted or rolls back by itself.

    running, step 0 ──► step 1 ──► ... ──► last step ──► promoted
        └──────────────────┴─────────────────┴─────────► rolled back, aborted

Each step waits for its observations and its time. Between steps the estimates must be within the
bounds; for the promotion the evidence must show it. Evidence of a worse version rolls back at once,
in any step. Evidence is kept over all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

import msgspec

from tidemill.base import clock
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.server.host.rollout.comparison import Comparison, MetricView, Verdict
from tidemill.server.host.rollout.matching import BASELINE, VARIANT
from tidemill.server.host.rollout.observation import Observation
from tidemill.server.host.rollout.routing import Choice, route
from tidemill.server.host.rollout.text import beyond_text
from tidemill.server.host.rollout.traffic import Canary


class Phase(StrEnum):
    """Where a rollout is. All but RUNNING are final."""

    RUNNING = "running"
    PROMOTED = "promoted"  # all traffic to the canary
    ROLLED_BACK = "rolled back"  # all traffic to the stable version: evidence, or no time left
    ABORTED = "aborted"  # the same, by a person


class EventKind(StrEnum):
    """What happened to a rollout."""

    STARTED = "started"
    ADVANCED = "advanced"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled back"
    ABORTED = "aborted"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a change, with the numbers that it was made by.

    Attributes:
        at: seconds since the epoch.
        kind: see `EventKind`.
        percent_before, percent_after: the canary's share.
        reason: a sentence.
        metrics: the comparison at that time.
    """

    at: float
    kind: EventKind
    percent_before: float
    percent_after: float
    reason: str
    metrics: tuple[MetricView, ...] = ()


class RolloutState(msgspec.Struct, kw_only=True):
    """All that a rollout knows. A server that starts again goes on from it.

    Attributes:
        name: the model name that clients use.
        rule: the canary's rule, as it was when the rollout started.
        comparison: evidence.
        phase: see `Phase`.
        step: index into `rule.plan()`.
        step_observations: requests of the canary in this step.
        step_seconds: time spent in this step, without the time that the server was down.
        seconds: time spent in all steps.
        events: oldest first; one per step and one for the end.
    """

    name: str
    rule: Canary
    comparison: Comparison
    phase: Phase = Phase.RUNNING
    step: int = 0
    step_observations: int = 0
    step_seconds: float = 0.0
    seconds: float = 0.0
    events: list[Event] = []


class Rollout:
    """The state machine. It does no I/O; `tick` must be called now and then for time to count."""

    def __init__(
        self,
        state: RolloutState,
        *,
        monotonic: Callable[[], float] = clock.monotonic,
        wall: Callable[[], float] = clock.wall,
    ) -> None:
        """A rollout that goes on from `state`, which it owns from now on."""
        self.state = state
        self._plan = state.rule.plan()
        self._monotonic, self._wall = monotonic, wall
        self._last = monotonic()

    @classmethod
    def start(
        cls,
        name: str,
        rule: Canary,
        *,
        monotonic: Callable[[], float] = clock.monotonic,
        wall: Callable[[], float] = clock.wall,
    ) -> Rollout:
        """A new rollout in its first step."""
        comparison = Comparison.start(
            rule.stable,
            rule.canary,
            share=rule.plan()[0].percent / 100,
            alpha=rule.alpha,
            bounds=rule.bounds,
        )
        made = cls(
            RolloutState(name=name, rule=rule, comparison=comparison),
            monotonic=monotonic,
            wall=wall,
        )
        made._record(EventKind.STARTED, 0.0, f"{rule.canary} is compared with {rule.stable}")
        return made

    @classmethod
    def restore(
        cls,
        data: bytes,
        *,
        monotonic: Callable[[], float] = clock.monotonic,
        wall: Callable[[], float] = clock.wall,
    ) -> Rollout:
        """The rollout that `save` wrote.

        Raises:
            TidemillError: kind CONFIG, when the data is no rollout of this version of Tidemill.
        """
        try:
            state = msgspec.json.decode(data, type=RolloutState)
        except msgspec.DecodeError as fault:
            raise _unreadable(fault) from None
        return cls.resume(state, monotonic=monotonic, wall=wall)

    @classmethod
    def resume(
        cls,
        state: RolloutState,
        *,
        monotonic: Callable[[], float] = clock.monotonic,
        wall: Callable[[], float] = clock.wall,
    ) -> Rollout:
        """The rollout whose `snapshot` that is.

        Raises:
            TidemillError: kind CONFIG, it contradicts itself.
        """
        if not 0 <= state.step < len(state.rule.plan()):
            raise _unreadable("the step is none of the plan's")
        return cls(state, monotonic=monotonic, wall=wall)

    def snapshot(self) -> RolloutState:
        """The state, with the time until now."""
        self._count_time()
        return self.state

    def save(self) -> bytes:
        """The state as JSON, some 10 to 50 kB."""
        return msgspec.json.encode(self.snapshot())

    @property
    def percent(self) -> float:
        """The canary's share of the traffic now."""
        match self.state.phase:
            case Phase.RUNNING:
                return self._plan[self.state.step].percent
            case Phase.PROMOTED:
                return 100.0
            case _:
                return 0.0

    def route(self, unit: str) -> Choice:
        """Where a request goes; see `routing.unit_of`."""
        state = self.state
        return route(state.name, state.rule, unit, percent=self.percent, step=state.step)

    def observe(self, observation: Observation) -> Event | None:
        """Counts a request that has ended; of a version that is not compared it says nothing.

        Returns:
            What it led to: one event at most; later calls go on from there.
        """
        state = self.state
        arms = {state.rule.stable: BASELINE, state.rule.canary: VARIANT}
        arm = arms.get(observation.version)
        if state.phase is not Phase.RUNNING or arm is None:
            return None
        # A request of an earlier step was drawn with another share: compared with those of this
        # step it would be compared with another time's load.
        current = observation.step == state.step
        before = state.comparison.arms[VARIANT].requests
        changed = state.comparison.observe(arm, observation, compare=current)
        counted = state.comparison.arms[VARIANT].requests - before if current else 0
        state.step_observations += counted
        return self.tick() if changed or counted else None

    def tick(self) -> Event | None:
        """Takes the step that time and evidence allow, if there is one."""
        self._count_time()
        state = self.state
        if state.phase is not Phase.RUNNING:
            return None
        worse = [m for m in state.comparison.metrics if self._verdict(m) is Verdict.BEYOND]
        if worse:
            reason = "; ".join(beyond_text(state.comparison.view(m)) for m in worse)
            return self._finish(Phase.ROLLED_BACK, EventKind.ROLLED_BACK, reason)
        if next(self._missing(), None) is None:
            return self._advance()
        limit = state.rule.max_seconds
        if limit != "off" and state.seconds >= limit:
            reason = f"undecided after {limit:g} s: " + "; ".join(self.waiting_for())
            return self._finish(Phase.ROLLED_BACK, EventKind.ROLLED_BACK, reason)
        return None

    def promote(self, reason: str = "promoted by an administrator") -> Event:
        """All traffic to the canary, whatever the evidence.

        Raises:
            TidemillError: kind BAD_REQUEST when the rollout has ended.
        """
        self._check_running()
        return self._finish(Phase.PROMOTED, EventKind.PROMOTED, reason)

    def abort(self, reason: str = "aborted by an administrator") -> Event:
        """All traffic to the stable version.

        Raises:
            TidemillError: kind BAD_REQUEST when the rollout has ended.
        """
        self._check_running()
        return self._finish(Phase.ABORTED, EventKind.ABORTED, reason)

    def waiting_for(self) -> list[str]:
        """What the next step waits for, in words; empty when nothing is missing or it has ended."""
        return list(self._missing()) if self.state.phase is Phase.RUNNING else []

    def _missing(self) -> Iterator[str]:
        """The cheapest to find first: every observation looks for the first one."""
        state, step = self.state, self._plan[self.state.step]
        assert step.observations is not None and step.seconds is not None  # `plan` filled them in
        if state.step_seconds < step.seconds:
            yield f"{state.step_seconds:.0f} of {step.seconds:.0f} s"
        if state.step_observations < step.observations:
            yield f"not yet enough: {state.step_observations} of {step.observations} requests"
        if state.rule.sticky != "request":
            units = state.comparison.arms[VARIANT].units.count
            if units < state.rule.min_units:
                yield f"not yet enough: {units} of {state.rule.min_units} {state.rule.sticky}s"
        yield from self._missing_evidence() if self._last_step else self._missing_estimates()

    def _missing_estimates(self) -> Iterator[str]:
        for name in self.state.comparison.metrics:
            if not self.state.comparison.estimate_within(name):
                yield f"the estimate of {name} is beyond its limit"

    def _missing_evidence(self) -> Iterator[str]:
        verdicts = {name: self._verdict(name) for name in self.state.comparison.metrics}
        undecided = [name for name, v in verdicts.items() if v is Verdict.NOT_ENOUGH]
        for name in undecided:
            yield f"not yet enough evidence that {name} is within its limits"
        if not undecided and Verdict.WITHIN not in verdicts.values():
            yield "no metric with a limit has data"

    @property
    def _last_step(self) -> bool:
        return self.state.step == len(self._plan) - 1

    def _verdict(self, metric: str) -> Verdict:
        return self.state.comparison.verdict(metric)

    def _advance(self) -> Event:
        state, before = self.state, self.percent
        if self._last_step:
            within = [m for m in state.comparison.metrics if self._verdict(m) is Verdict.WITHIN]
            reason = f"within the limits: {', '.join(within)}"
            return self._finish(Phase.PROMOTED, EventKind.PROMOTED, reason)
        reason = (
            f"{state.step_observations} requests in {state.step_seconds:.0f} s, "
            "all estimates within the limits"
        )
        state.step += 1
        state.step_observations, state.step_seconds = 0, 0.0
        state.comparison.change_share(self.percent / 100)
        return self._record(EventKind.ADVANCED, before, reason)

    def _finish(self, phase: Phase, kind: EventKind, reason: str) -> Event:
        before = self.percent
        self.state.phase = phase
        return self._record(kind, before, reason)

    def _record(self, kind: EventKind, before: float, reason: str) -> Event:
        event = Event(
            at=self._wall(),
            kind=kind,
            percent_before=before,
            percent_after=self.percent,
            reason=reason,
            metrics=self.state.comparison.views() if kind is not EventKind.STARTED else (),
        )
        self.state.events.append(event)
        return event

    def _count_time(self) -> None:
        now = self._monotonic()
        if self.state.phase is Phase.RUNNING:
            self.state.step_seconds += now - self._last
            self.state.seconds += now - self._last
        self._last = now

    def _check_running(self) -> None:
        if self.state.phase is not Phase.RUNNING:
            raise TidemillError(
                ErrorKind.BAD_REQUEST,
                f"the rollout of {self.state.name} has ended ({self.state.phase}); start another",
                param="name",
            )


def _unreadable(why: object) -> TidemillError:
    return TidemillError(
        ErrorKind.CONFIG,
        f"the saved state of the rollout cannot be read ({why}); start the rollout again",
    )
