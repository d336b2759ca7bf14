"""Scaling: the cluster's own rule (`cluster.scaling`) over simulated engines that come and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial

from tidemill.base.durations import duration_seconds
from tidemill.base.errors import config_error
from tidemill.cluster.scaling import Autoscaler, EngineFacts, Held, Objectives, State
from tidemill.simulate.fleet import Fleet
from tidemill.simulate.server import SimulatedServer
from tidemill.simulate.timeline import Timeline

MOST_ENGINES = 10_000
"""Of a simulated fleet: each takes some milliseconds to make."""

_LEAST_INTERVAL = 0.01
"""Seconds: each look is an event, also while nothing happens."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a fleet is scaled; it begins with the least engines.

    Attributes:
        objectives: see there.
        start: seconds from the decision until an engine is ready; None: as measured.
        interval: seconds between two looks.
        ttft: seconds to a first token that count as good, where goodput is an objective.
        hold: seconds that a request waits at the gateway for an engine.
        max_held: requests that may wait there.
    """

    objectives: Objectives = field(default_factory=Objectives)
    start: float | None = None
    interval: float = 1.0
    ttft: float = 1.0
    hold: float = 120.0
    max_held: int = 256


_PLAIN = {"min": "min_engines", "max": "max_engines", "max-held": "max_held"}
_OWN = ("start", "interval", "ttft", "hold", "max_held")
_WHOLE_NUMBERS = ("min_engines", "max_engines", "burst", "max_held")


def read_scaling(text: str) -> Scaling | None:
    """``min=0,max=8,target-wait=2s`` as how a fleet is scaled; nothing: None.

    Raises:
        TidemillError: CONFIG.
    """
    if not text:
        return None
    known = {field.name for field in fields(Objectives)} - {"signals"} | set(_OWN)
    found: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, _, value = part.partition("=")
        name = _PLAIN.get(key, key.replace("-", "_"))
        if name not in known:
            there = ", ".join(sorted(known)).replace("_engines", "").replace("_", "-")
            raise config_error("autoscale", f"autoscale: {key!r} is none of {there}")
        try:
            found[name] = int(value) if name in _WHOLE_NUMBERS else duration_seconds(value)
        except ValueError:
            raise config_error("autoscale", f"autoscale: {part!r} has no such value") from None
    if found.get("max_engines", 0) > MOST_ENGINES:
        raise config_error("autoscale", f"autoscale: max must be at most {MOST_ENGINES}")
    own = {name: found.pop(name) for name in _OWN if name in found}
    for name, at_least in own.items():
        if at_least <= 0:
            raise config_error("autoscale", f"autoscale: {name} must be above 0")
    if own.get("interval", 1.0) < _LEAST_INTERVAL:
        raise config_error(
            "autoscale", f"autoscale: interval must be at least {_LEAST_INTERVAL} seconds"
        )
    try:
        return Scaling(Objectives(**found), **own)  # type: ignore[arg-type]
    except ValueError as error:
        raise config_error("autoscale", f"autoscale: {error}") from None


@dataclass(slots=True)
class _Engine:
    """Attributes:
    began: when it was started.
    given: requests that it had been given at the last look.
    good, ended: first tokens since then within the objective, and all.
    """

    number: int
    began: float
    state: State = State.STARTING
    server: SimulatedServer | None = None
    given: int = 0
    good: int = 0
    ended: int = 0


class Scaler:
    """Starts and ends engines of a fleet.

    Args:
        timeline: its time.
        fleet: has no servers yet; gets those that are ready.
        scaling: how.
        start: seconds until an engine is ready.
        slots: requests that an engine computes at once.
        server: makes the server of a number.

    Attributes:
        most: engines at a time.
        starts: engines that were started, beside those that were there from the beginning.
    """

    def __init__(
        self,
        timeline: Timeline,
        fleet: Fleet,
        scaling: Scaling,
        start: float,
        slots: int,
        server: Callable[[int], SimulatedServer],
    ) -> None:
        self.most = self.starts = 0
        self._timeline = timeline
        self._fleet = fleet
        self._scaling = scaling
        self._start = start
        self._slots = slots
        self._server = server
        self._policy = Autoscaler(scaling.objectives)
        self._engines: dict[str, _Engine] = {}
        self._numbers = 0
        self._paid = 0.0  # seconds of engines that have ended
        fleet.on_first = self._first
        for _ in range(scaling.objectives.min_engines):
            self._be_ready(self._new())
        timeline.at(timeline.now + scaling.interval, self._look)

    @property
    def engine_seconds(self) -> float:
        """Seconds that engines have been there, from their start on."""
        now = self._timeline.now
        return self._paid + sum(now - engine.began for engine in self._engines.values())

    def _new(self) -> str:
        name = f"{self._numbers:06}"
        self._engines[name] = _Engine(self._numbers, self._timeline.now)
        self._numbers += 1
        self.most = max(self.most, len(self._engines))
        return name

    def _be_ready(self, name: str) -> None:
        engine = self._engines.get(name)
        if engine is not None and engine.state is State.STARTING:
            engine.state, engine.server = State.READY, self._server(engine.number)
            self._fleet.add(name, engine.server)

    def _first(self, name: str, seconds: float) -> None:
        engine = self._engines[name]
        engine.ended += 1
        engine.good += seconds <= self._scaling.ttft

    # -- once per interval ---------------------------------------------------------------------

    def _look(self) -> None:
        now, fleet = self._timeline.now, self._fleet
        for name, engine in list(self._engines.items()):
            if engine.state is State.DRAINING and not fleet.active(name):
                self._end(name)
        facts = [self._facts(name, engine) for name, engine in self._engines.items()]
        held = Held(requests=len(fleet.held), seconds=fleet.held_seconds)
        decision = self._policy.decide(now, facts, held)
        for name in decision.restore:
            self._engines[name].state = State.READY
            fleet.open(name)
        for name in decision.drain:
            if self._engines[name].state is State.STARTING:
                self._end(name)
            else:
                self._engines[name].state = State.DRAINING
                fleet.close(name)
        for _ in range(decision.start):
            self.starts += 1
            self._timeline.at(now + self._start, partial(self._be_ready, self._new()))
        self._timeline.at(now + self._scaling.interval, self._look)

    def _end(self, name: str) -> None:
        engine = self._engines.pop(name)
        self._paid += self._timeline.now - engine.began
        if engine.server is not None:
            self._fleet.remove(name)

    def _facts(self, name: str, engine: _Engine) -> EngineFacts:
        server = engine.server
        if server is None:
            return EngineFacts(name=name, state=engine.state)
        given, before = self._fleet.given(name), engine.given
        ended, good = engine.ended, engine.good
        engine.given, engine.ended, engine.good = given, 0, 0
        wait, queued_tokens = server.waiting()
        return EngineFacts(
            name=name,
            state=engine.state,
            wait=self._fleet.waiting(name) if wait is None else wait,
            running=server.active,
            arrived=given - before,
            queued_tokens=queued_tokens,
            slots=self._slots,
            goodput=good / ended if ended else None,
        )
