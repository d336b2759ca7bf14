"""How many engines of a model there should be: a pure rule over measured facts.

No clock, no socket, no process in here: a controller observes real engines, the simulator its own,
and both call `Autoscaler.decide` once per interval.

The demand is a number of engines, the largest of

- wait: the predicted waits of all engines together, over the wait that is the objective;
- load: the shares of their capacity that are in use together, over the share that is aimed at;
- goodput: one more than there are, while too few requests meet their objectives although every
  engine that was started is ready.

Scale-out follows the demand at once; engines that start already count as capacity, and no more
than a burst is started before those are ready. Scale-in follows the largest demand of a whole
stabilization window, with hysteresis; a scale-in that has to be undone doubles the window. The last
engine of a model that may have none goes after a time without any request, and the first request
that a gateway holds brings one back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, inf

TOLERANCE = 0.1
"""Share by which the demand may exceed the engines that there are: noise starts no engine."""

HYSTERESIS = 0.15
"""Share of the remaining engines that stays free after a scale-in."""

MAX_PATIENCE = 8
"""How many times longer the stabilization window gets by scale-ins that were undone."""


_ROUNDING = 1e-9


class State(StrEnum):
    """Of an engine."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Signal(StrEnum):
    """What the demand is read from."""

    WAIT = "wait"
    LOAD = "load"
    GOODPUT = "goodput"


ALL_SIGNALS = frozenset(Signal)

ROLE_SIGNALS: Mapping[str, frozenset[Signal]] = {
    "both": ALL_SIGNALS,
    "prefill": frozenset({Signal.WAIT, Signal.LOAD}),
    "decode": frozenset({Signal.LOAD, Signal.GOODPUT}),
}
"""Signals of engines by what they do: roles are scaled separately, by an `Autoscaler` each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What is to be reached, and at what pace.

    Attributes:
        min_engines, max_engines: bounds of the answer; with 0 a model without requests has none.
        target_wait: seconds that a request may be predicted to wait before it is computed.
        target_load: share of an engine's capacity that is to be in use.
        target_running: requests of an engine that are its whole capacity; None: its slots.
        goodput: share of requests that is to meet their objectives; None: not observed.
        burst: engines that may be starting at a time, or as many as are ready if that is more.
        cooldown: seconds after a change until goodput counts again: what it says is late.
        stabilization: seconds of low demand before a scale-in.
        idle: seconds without any request before the last engine goes, where none need stay.
        signals: what the demand is read from.
    """

    min_engines: int = 1
    max_engines: int = 1
    target_wait: float = 2.0
    target_load: float = 0.8
    target_running: float | None = None
    goodput: float | None = None
    burst: int = 4
    cooldown: float = 30.0
    stabilization: float = 300.0
    idle: float = 600.0
    signals: frozenset[Signal] = ALL_SIGNALS

    def __post_init__(self) -> None:
        """Raises ValueError with the name of what is wrong."""
        if not 0 <= self.min_engines <= self.max_engines:
            raise ValueError("min_engines: must be 0 or more, and at most max_engines")
        for name in ("target_wait", "target_load", "burst"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be more than 0")
        if self.target_running is not None and not self.target_running > 0:
            raise ValueError("target_running: must be more than 0")
        if self.goodput is not None and not 0 < self.goodput <= 1:
            raise ValueError("goodput: must be a share, above 0 and at most 1")
        for name in ("cooldown", "stabilization", "idle"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name}: must be 0 seconds or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """One engine as it was measured.

    Attributes:
        name: its name; of engines that started together the later name is the newer engine.
        state: see `State`.
        wait: seconds that a further request is predicted to wait there.
        running: requests that it has, waiting ones included.
        arrived: requests that came since the last decision, those included that have ended since.
        queued_tokens: prompt tokens that wait there.
        slots: requests that it computes at once; None: unknown.
        busy: share of its capacity that is in use; None: `running` over its capacity.
        goodput: share of its latest requests that met their objectives; None: none ended.
    """

    name: str
    state: State = State.READY
    wait: float = 0.0
    running: int = 0
    arrived: int = 0
    queued_tokens: int = 0
    slots: int | None = None
    busy: float | None = None
    goodput: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What gateways hold, because there is no engine that could take it.

    Attributes:
        requests: how many.
        seconds: of one engine's work, as far as that can be predicted.
    """

    requests: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done.

    Attributes:
        desired: engines, without those that drain.
        start: new ones.
        restore: names of draining ones that stay after all.
        drain: names of those that are to go.
        demand: that was measured, in engines.
        reason: for people.
    """

    desired: int
    start: int = 0
    restore: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    demand: float = 0.0
    reason: str = ""


NOTHING_HELD = Held()


@dataclass(slots=True)
class _Window:
    """The largest value of the latest seconds; older ones that are smaller need not be kept."""

    _values: deque[tuple[float, float]] = field(default_factory=deque)
    _since: float | None = None

    def add(self, now: float, value: float) -> None:
        """Observe."""
        if self._since is None:
            self._since = now
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now, value))

    def most(self, now: float, seconds: float) -> float | None:
        """Of the latest seconds; None: it has not been observed for as long."""
        if self._since is None or now - self._since < seconds:
            return None
        while len(self._values) > 1 and self._values[0][0] < now - MAX_PATIENCE * seconds:
            self._values.popleft()
        return max((v for at, v in self._values if at >= now - seconds), default=0.0)


class Autoscaler:
    """Decides for one model, or for one role of its engines.

    Args:
        objectives: what is to be reached.

    Times are seconds of any one clock. What it knows of the past begins with the first call: after
    a restart of its owner nothing is scaled in for a stabilization window.
    """

    def __init__(self, objectives: Objectives) -> None:
        self.objectives = objectives
        self._window = _Window()
        self._active: float | None = None  # when there was a request last
        self._changed = -inf
        self._scaled_in = -inf
        self._undone = -inf
        self._patience = 1

    def decide(
        self, now: float, engines: Collection[EngineFacts], held: Held = NOTHING_HELD
    ) -> Decision:
        """What is to be done now.

        Args:
            now: seconds; never less than in the call before.
            engines: all that exist, whatever their state.
            held: see `Held`.
        """
        staying = [one for one in engines if one.state is not State.DRAINING]
        demand, why = self._demand(now, staying, held)
        if self._active is None or held.requests or any(map(_is_used, engines)):
            self._active = now
        self._window.add(now, demand)
        desired, reason = self._desired(now, staying, demand, held)
        if desired > len(staying):
            self._note_scale_out(now)
            return self._more(desired, engines, demand, f"{reason}: {why}")
        if desired < len(staying):
            self._note_scale_in(now, desired)
            gone = _least_needed(staying)[: len(staying) - desired]
            names = tuple(one.name for one in gone)
            return Decision(desired=desired, drain=names, demand=demand, reason=reason)
        return Decision(desired=desired, demand=demand, reason=reason)

    # -- demand --------------------------------------------------------------------------------

    def _demand(self, now: float, engines: Sequence[EngineFacts], held: Held) -> tuple[float, str]:
        """The engines that are needed, and what says so."""
        goal = self.objectives
        ready = [one for one in engines if one.state is State.READY]
        found = {"no request": 0.0}
        if Signal.WAIT in goal.signals:
            waited = sum(one.wait for one in ready) + held.seconds
            found[f"a predicted wait of {waited:.1f} s altogether"] = waited / goal.target_wait
        if Signal.LOAD in goal.signals:
            load = sum(self._load(one) for one in ready)
            found[f"a load of {load:.2f} engines"] = load / goal.target_load
        if Signal.GOODPUT in goal.signals:
            met = self._goodput(now, engines)
            if met is not None:
                found[f"only {met:.1%} of requests meet their objectives"] = len(engines) + 1.0
        if held.requests:
            per_engine = goal.target_running or inf
            found[f"{held.requests} held requests"] = max(1.0, held.requests / per_engine)
        return max((demand, why) for why, demand in found.items())

    def _load(self, engine: EngineFacts) -> float:
        """The share of its capacity in use."""
        if engine.busy is not None:
            return engine.busy
        capacity = self.objectives.target_running or engine.slots
        return engine.running / capacity if capacity else 0.0

    def _goodput(self, now: float, engines: Sequence[EngineFacts]) -> float | None:
        """The share of requests that met their objectives; None: enough do, or it says nothing of
        the engines that there are now."""
        goal = self.objectives
        if goal.goodput is None or now - self._changed < goal.cooldown:
            return None
        if any(one.state is not State.READY for one in engines):
            return None
        known = [(one.goodput, max(1, one.running)) for one in engines if one.goodput is not None]
        if not known:
            return None
        met = sum(share * weight for share, weight in known) / sum(weight for _, weight in known)
        return met if met < goal.goodput - _ROUNDING else None

    # -- desired -------------------------------------------------------------------------------

    def _desired(
        self, now: float, engines: Sequence[EngineFacts], demand: float, held: Held
    ) -> tuple[int, str]:
        goal, count = self.objectives, len(engines)
        ready = sum(one.state is State.READY for one in engines)
        if count < goal.min_engines:
            return goal.min_engines, "fewer than the least"
        if count > goal.max_engines:
            return goal.max_engines, "more than the most"
        if demand > count * (1 + TOLERANCE):
            wanted = ceil(demand - TOLERANCE * count)
            bound = max(count, ready + max(goal.burst, ready))
            desired = min(wanted, bound, goal.max_engines)
            if desired > count:
                return desired, "scale-out"
            return count, "at the most" if count == goal.max_engines else "engines are starting"
        if count <= goal.min_engines:
            return count, "as needed"
        assert self._active is not None
        if goal.min_engines == 0 and not held.requests and now - self._active >= goal.idle:
            return 0, "no request came"
        return self._fewer(now, count)

    def _fewer(self, now: float, count: int) -> tuple[int, str]:
        """How many are enough for what was needed lately."""
        goal = self.objectives
        peak = self._window.most(now, goal.stabilization * self._patience)
        if peak is None or now - self._changed < goal.cooldown:
            return count, "as needed"
        enough = max(1, goal.min_engines, ceil(peak / (1 - HYSTERESIS)))
        return (enough, "scale-in") if enough < count else (count, "as needed")

    # -- changes -------------------------------------------------------------------------------

    def _note_scale_out(self, now: float) -> None:
        if now - self._scaled_in < 2 * self.objectives.stabilization * self._patience:
            self._patience = min(MAX_PATIENCE, 2 * self._patience)
            self._scaled_in, self._undone = -inf, now
        self._changed = now

    def _note_scale_in(self, now: float, desired: int) -> None:
        if now - self._undone > 4 * self.objectives.stabilization * self._patience:
            self._patience = max(1, self._patience // 2)
        self._changed = now
        if desired:  # having none is undone by the next request, whenever that comes
            self._scaled_in = now

    def _more(
        self, desired: int, engines: Collection[EngineFacts], demand: float, reason: str
    ) -> Decision:
        """Engines that drain are ready at once: they stay before others start."""
        draining = [one for one in engines if one.state is State.DRAINING]
        missing = desired - (len(engines) - len(draining))
        draining.sort(key=lambda one: (-one.running, one.name))
        restored = tuple(one.name for one in draining[:missing])
        return Decision(
            desired=desired,
            start=missing - len(restored),
            restore=restored,
            demand=demand,
            reason=reason,
        )


def _is_used(engine: EngineFacts) -> bool:
    return engine.running > 0 or engine.arrived > 0


def _least_needed(engines: Sequence[EngineFacts]) -> list[EngineFacts]:
    """In the order in which they may go: those that start, then those with the fewest requests; of
    equals the newest."""
    newest = sorted(engines, key=lambda one: one.name, reverse=True)
    return sorted(newest, key=lambda one: (one.state is State.READY, one.running))
