"""Search: the cheapest fleet that serves a load within its objectives, found by simulation.

Every candidate is a kind of engine with its costs, its sizes and its price. More engines of a kind
never serve less, so the fewest that suffice are found by doubling and bisection. Three things keep
the simulations few and short:

- A candidate of which not even a request alone meets the objectives is out: no number helps.
- Once a fleet is known, another candidate is asked first for the most engines that are cheaper. If
  these do not suffice, the candidate is out after one simulation.
- A simulation ends when so many requests have missed that the rest cannot make up for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tidemill.base.errors import config_error
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import PointReport, RequestTrace
from tidemill.bench.summary import gaps, meets, summarize
from tidemill.bench.workload import Session, Workload
from tidemill.gateway.routing.policy import DEFAULT
from tidemill.simulate.costs import Costs
from tidemill.simulate.loops import SimulatedLoops, at_once
from tidemill.simulate.prompts import Prompts
from tidemill.simulate.run import FleetOptions, Simulation, check_models, check_workload

MOST_ENGINES = 256
_ALONE = 50  # requests sent alone, before anything else
_ENOUGH_HEADROOM = 1.05  # a search for a load's headroom ends when its bounds differ by so much
_MOST_HEADROOM = 8.0
CACHE_STEP = 1.2
"""A search for the least KV cache ends when its bounds differ by this factor."""
_LEAST_CACHE = 1 / 64  # of an engine's: less is not looked for


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kind of engine.

    Attributes:
        name: how people call it.
        costs: of its steps.
        price: of one engine per hour, in any currency.
        fleet: sizes and speed; its number of engines is ignored.
        devices: that compute together as one engine; `price` is of all of them.
    """

    name: str
    costs: Costs
    price: float
    fleet: FleetOptions = field(default_factory=FleetOptions)
    devices: int = 1

    @property
    def cache_tokens(self) -> int:
        """Tokens that an engine's KV cache holds."""
        facts = self.costs.engine
        sizes = {"num_blocks": facts.num_blocks, "block_size": facts.block_size}
        sizes.update((name, self.fleet.sizes[name]) for name in sizes if name in self.fleet.sizes)
        return sizes["num_blocks"] * sizes["block_size"]

    def with_cache(self, share: float) -> Candidate:
        """This kind with so much of its KV cache."""
        sizes = dict(self.fleet.sizes)
        blocks = sizes.get("num_blocks", self.costs.engine.num_blocks)
        sizes["num_blocks"] = max(1, round(blocks * share))
        return replace(self, fleet=replace(self.fleet, sizes=sizes))


@dataclass(frozen=True, slots=True)
class Probe:
    """One simulated fleet.

    Attributes:
        candidate, engines: what was simulated.
        attainment: share of the requests that met the objectives; of a probe that ended early, an
            upper bound.
        passed: whether that suffices.
        point: its figures.
        misses: objective -> requests that missed it.
        limit: what requests waited for: ``computing``, ``batch``, ``memory`` or ``nothing``.
        busy: share of the time in which engines computed.
    """

    candidate: Candidate
    engines: int
    attainment: float
    passed: bool
    point: PointReport
    misses: Mapping[str, int]
    limit: str
    busy: float

    @property
    def price(self) -> float:
        """Of the fleet, per hour."""
        return self.engines * self.candidate.price


@dataclass(slots=True)
class Found:
    """The result of a search.

    Attributes:
        best: the cheapest fleet that suffices; None: there is none.
        probes: all simulations, in order.
        out: candidate -> why it is not the answer.
        headroom: times of the load that the best fleet carries, and that it carries with one engine
            more; `_MOST_HEADROOM` at most.
        cache: the least KV cache of an engine, in tokens, with which the best fleet still suffices,
            within `CACHE_STEP`; None: it was not looked for.
    """

    best: Probe | None = None
    probes: list[Probe] = field(default_factory=list)
    out: dict[str, str] = field(default_factory=dict)
    headroom: tuple[float, float] | None = None
    cache: int | None = None

    def sentences(self) -> list[str]:
        """What was found, for readers."""
        found = []
        if self.best is None:
            found.append("No candidate serves the load within its objectives.")
        else:
            best = self.best
            found.append(
                f"{best.engines} engine(s) of {best.candidate.name} serve the load: "
                f"{best.attainment:.1%} of the requests meet the objectives, for "
                f"{best.price:,.2f} per hour."
            )
            less = [p for p in self.probes if p.candidate is best.candidate and not p.passed]
            if less:
                closest = max(less, key=lambda probe: probe.engines)
                found.append(f"With {closest.engines} of them {_why(closest)}.")
            if self.headroom is not None:
                now, more = self.headroom
                found.append(
                    f"They carry {now:.2f} times the load; one more, for "
                    f"{best.candidate.price:,.2f} per hour, makes that {more:.2f} times."
                    if now < _MOST_HEADROOM
                    else f"They carry {now:.2f} times the load; more was not tried."
                )
            if self.cache is not None:
                found.append(
                    f"Of a KV cache of {best.candidate.cache_tokens:,} tokens per engine, "
                    f"{self.cache:,} suffice."
                )
        found += [f"{name}: {why}." for name, why in self.out.items()]
        return found


def _why(probe: Probe) -> str:
    missed = max(probe.misses, key=lambda name: probe.misses[name], default="nothing")
    waits = {
        "computing": "steps are full of prompts and tokens",
        "batch": "requests wait for a place among those that run at once (max_num_seqs)",
        "memory": "requests wait for KV blocks",
        "nothing": "no request waits: single steps take too long",
    }[probe.limit]
    return f"at most {probe.attainment:.1%} do: {missed} is missed most, and {waits}"


class Search:
    """Finds the cheapest fleet.

    Args:
        options: the load: a trace, or one rate; its objectives and `target`.
        candidates: kinds of engines.
        budget: the most that a fleet may cost per hour; None: anything.
        most: engines of a fleet at most.
        policy: of the gateway.
        progress: called with a sentence before each simulation.

    Raises:
        TidemillError: CONFIG for a load without objectives, or none that could be searched for.
    """

    def __init__(
        self,
        options: BenchOptions,
        candidates: Sequence[Candidate],
        *,
        budget: float | None = None,
        most: int = MOST_ENGINES,
        policy: str = DEFAULT,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        options = options.validate()
        check_workload(options)
        if not options.objectives:
            raise config_error("objectives", "a search needs objectives, such as ttft<1s,itl<50ms")
        if options.trace is None and len(options.rates) != 1:
            raise config_error("rates", "a search needs a trace, or one rate of requests")
        if not candidates:
            raise config_error("candidates", "a search needs a candidate: costs of an engine")
        if any(candidate.price <= 0 for candidate in candidates):
            raise config_error("price", "an engine's price per hour must be above 0")
        self._options = options
        self._candidates = sorted(candidates, key=lambda candidate: candidate.price)
        self._budget = math.inf if budget is None else budget
        self._most = most
        self._policy = policy
        self._progress = progress
        self.found = Found()

    def run(self, *, headroom: bool = True) -> Found:
        """Search; `headroom`: also how much more the result carries, what one more engine adds, and
        how much of its KV cache it needs."""
        for candidate in self._candidates:
            self._try(candidate)
        best = self.found.best
        if headroom and best is not None:
            self.found.headroom = self._carries(best, 0), self._carries(best, 1)
            self.found.cache = self._least_cache(best)
        return self.found

    # -- one candidate -----------------------------------------------------------------------

    def _try(self, candidate: Candidate) -> None:
        found, price = self.found, candidate.price
        ceiling = self._budget if found.best is None else min(self._budget, found.best.price)
        affordable = int(min(float(self._most), ceiling / price + 1e-9))
        if found.best is not None and affordable * price >= found.best.price - 1e-9:
            affordable -= 1  # at the same price it is no better
        if affordable < 1:
            found.out[candidate.name] = self._too_dear(candidate)
            return
        share = self._alone(candidate)
        if share < self._options.target:
            found.out[candidate.name] = (
                f"even of requests that come alone only {share:.1%} meet the objectives, whatever "
                "their number"
            )
            return
        fewest = self._fewest(candidate, affordable, bounded=ceiling < math.inf)
        if fewest is None:
            last = found.probes[-1]
            found.out[candidate.name] = (
                f"{affordable} engine(s), the most that "
                + ("are cheaper" if found.best is not None else "are allowed")
                + f", do not suffice: {_why(last)}"
            )
            return
        if found.best is not None:
            found.out[found.best.candidate.name] = (
                f"{found.best.engines} engine(s) for {found.best.price:,.2f} per hour would do, at "
                "a higher price"
            )
        found.best = fewest

    def _too_dear(self, candidate: Candidate) -> str:
        best = self.found.best
        if best is not None and candidate.price <= self._budget:
            return "one engine costs as much as the fleet found"
        return "one engine costs more than the budget"

    def _fewest(self, candidate: Candidate, most: int, *, bounded: bool) -> Probe | None:
        """The fewest engines that suffice, at most so many; None: these do not.

        Args:
            bounded: `most` is a bound of money, which is worth asking for first.
        """
        probe = partial(self._probe, candidate)
        low, high = 0, None
        if bounded:
            high = probe(most)
            if not high.passed:
                return None
        count = 1
        while count < most and (high is None or count < high.engines):
            tried = probe(count)
            if tried.passed:
                high = tried
                break
            low, count = count, count * 2
        if high is None:
            high = probe(most)
            if not high.passed:
                return None
        while high.engines - low > 1:
            tried = probe((low + high.engines) // 2)
            if tried.passed:
                high = tried
            else:
                low = tried.engines
        return high

    # -- simulations -------------------------------------------------------------------------

    def _probe(self, candidate: Candidate, engines: int) -> Probe:
        self._progress(f"{engines} engine(s) of {candidate.name}")
        probe = simulate_fleet(self._options, candidate, engines, self._policy)
        self.found.probes.append(probe)
        return probe

    def _alone(self, candidate: Candidate) -> float:
        """The share of the first requests that meet the objectives when each comes alone."""
        self._progress(f"requests alone on {candidate.name}")
        options = self._options
        _, workload, loops = _prepared(options, candidate, 1, self._policy)
        sessions = _sessions(options, workload, 1.0)
        some = [session for _, session in zip(range(_ALONE), sessions, strict=False)]
        measured = at_once(
            loops.closed(iter(some), 1, options.max_seconds * len(some), lambda _: False)
        )
        met = sum(meets(trace, options.objectives) for trace in measured.traces)
        return met / max(1, len(measured.traces))

    def _carries(self, best: Probe, more: int) -> float:
        """Times of the load that a fleet of so many engines more carries."""
        candidate, engines = best.candidate, best.engines + more

        def passes(times: float) -> bool:
            self._progress(f"{engines} engine(s) of {candidate.name}, {times:.2f} times the load")
            return simulate_fleet(
                self._options, candidate, engines, self._policy, times=times
            ).passed

        low, high = 1.0, 2.0
        while high <= _MOST_HEADROOM and passes(high):
            low, high = high, 2 * high
        while high / low > _ENOUGH_HEADROOM and high <= _MOST_HEADROOM:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if passes(middle) else (low, middle)
        return low

    def _least_cache(self, best: Probe) -> int:
        """Tokens of the least KV cache with which a fleet still suffices."""
        high = 1.0  # share of its cache

        def passes(share: float) -> bool:
            candidate = best.candidate.with_cache(share)
            self._progress(f"{best.engines} engine(s) with {share:.1%} of the KV cache")
            return simulate_fleet(self._options, candidate, best.engines, self._policy).passed

        while high > _LEAST_CACHE and passes(high / 2):
            high /= 2
        low = high / 2
        while high > _LEAST_CACHE and high / low > CACHE_STEP:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if passes(middle) else (middle, high)
        return best.candidate.with_cache(high).cache_tokens


def _sessions(options: BenchOptions, workload: Workload, times: float) -> Iterator[Session]:
    if options.trace is not None:
        return workload.replay(options.speeds[0] * times)
    rate = options.rates[0]
    return workload.open(rate * times, options.requests_for(rate))


def _prepared(
    options: BenchOptions, candidate: Candidate, engines: int, policy: str
) -> tuple[Simulation, Workload, SimulatedLoops]:
    fleet = replace(candidate.fleet, engines=engines, policy=policy).validate()
    workload = Workload(options)
    check_models(workload, fleet, candidate.costs.engine.model)
    simulation = Simulation(candidate.costs, fleet, options.seed)
    loops = SimulatedLoops(
        simulation.timeline, simulation.entry, Prompts(options.seed), think=options.think,
        timeout=options.timeout, max_seconds=options.max_seconds,
    )  # fmt: skip
    return simulation, workload, loops


def simulate_fleet(
    options: BenchOptions,
    candidate: Candidate,
    engines: int,
    policy: str = DEFAULT,
    *,
    times: float = 1.0,
    early: bool = True,
) -> Probe:
    """Simulate a load on so many engines of a candidate.

    Args:
        times: of the load: arrivals are so many times as dense.
        early: end it when it has failed.
    """
    simulation, workload, loops = _prepared(options, candidate, engines, policy)
    total = _count(options, workload)
    allowed = math.floor((1 - options.target) * total + 1e-9) if total and early else math.inf
    missed = 0

    def tick(trace: RequestTrace) -> bool:
        nonlocal missed
        missed += not meets(trace, options.objectives)
        return missed > allowed

    until = min(options.duration or options.max_seconds, options.max_seconds)
    measured = at_once(loops.open(_sessions(options, workload, times), until, tick))
    mode = "rate" if options.trace is None else "trace"
    point = summarize(mode, times, measured.traces, options.objectives, measured.client)
    share = 1 - missed / max(1, total or point.requests)
    misses: Counter[str] = Counter()
    for trace in measured.traces:
        misses.update(_missed(trace, options.objectives))
    return Probe(
        candidate, engines, share, share >= options.target, point, misses, simulation.limit,
        simulation.busy,
    )  # fmt: skip


def _count(options: BenchOptions, workload: Workload) -> int | None:
    if options.trace is not None:
        return min(len(workload.trace), options.requests or len(workload.trace))
    return options.requests_for(options.rates[0])


def _missed(trace: RequestTrace, objectives: Mapping[str, float]) -> list[str]:
    if trace.error is not None:
        return ["error"]
    found = trace.latencies()
    found["itl"] = max(gaps([trace]), default=0.0)
    return [name for name, most in objectives.items() if 1000 * found.get(name, 0.0) > most]
