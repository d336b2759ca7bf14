"""`simulate`: every point of a benchmark's options, on servers that are simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from tidemill.base.errors import config_error
from tidemill.bench.options import BenchOptions
from tidemill.bench.points import Progress, Run, workload_facts
from tidemill.bench.results import BenchReport
from tidemill.bench.workload import Workload
from tidemill.contract.speculation import DRAFT
from tidemill.gateway.routing.policy import DEFAULT, POLICIES
from tidemill.simulate.costs import Costs, Work
from tidemill.simulate.drafts import Drafts, Speculation
from tidemill.simulate.fleet import Fleet
from tidemill.simulate.loops import Sends, SimulatedLoops, at_once
from tidemill.simulate.noise import no_noise, noise
from tidemill.simulate.prompts import Prompts
from tidemill.simulate.server import SimulatedServer
from tidemill.simulate.timeline import Timeline

TOOL = "tidemill simulate"

_BUSY = 0.9  # share of the time: whoever is late then waits for steps

SIZES = (
    "num_blocks", "block_size", "max_num_seqs", "max_step_tokens", "max_model_len",
    "prefix_caching",
)  # fmt: skip
"""Of `EngineFacts`, what a simulated engine may have otherwise than the measured one."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What answers the load.

    Attributes:
        engines: how many, each with an API process of its own.
        policy: how a gateway distributes requests among several.
        sizes: name of `SIZES` -> value, where it differs from what was measured.
        max_itl_ms: as `EngineConfig.max_itl_ms`.
        speed: steps take this many times less than was measured (what another device would do).
        noise: steps vary as the measured ones did; else each takes what was fitted.
        admission: the server's own admission answers 429 where its queue is full.
        acceptance: engines speculate: how likely a draft comes true where those before it have;
            None: they do not.
        draft_ms: what a drafter takes for each token that it proposes.
    """

    engines: int = 1
    policy: str = DEFAULT
    sizes: Mapping[str, int] = field(default_factory=dict)
    max_itl_ms: float | None = None
    speed: float = 1.0
    noise: bool = True
    admission: bool = True
    acceptance: float | None = None
    draft_ms: float = 0.0

    def validate(self) -> FleetOptions:
        """Return self if the options make sense.

        Raises:
            TidemillError: kind CONFIG, `param` naming the option.
        """
        if self.engines < 1:
            raise config_error("engines", "engines must be at least 1")
        if self.policy not in POLICIES:
            known = ", ".join(POLICIES)
            raise config_error("policy", f"policy is one of {known}, not {self.policy!r}")
        if self.speed <= 0:
            raise config_error("speed", "speed must be above 0")
        if self.max_itl_ms is not None and self.max_itl_ms <= 0:
            raise config_error("max_itl_ms", "max_itl_ms must be above 0")
        if self.acceptance is not None and not 0 <= self.acceptance <= 1:
            raise config_error("acceptance", "acceptance is a share, from 0 to 1")
        if self.draft_ms < 0:
            raise config_error("draft_ms", "draft_ms must be at least 0")
        for name, value in self.sizes.items():
            if name not in SIZES:
                raise config_error(name, f"sizes are {', '.join(SIZES)}")
            if name != "prefix_caching" and value < 1:
                raise config_error(name, f"{name} must be at least 1")
        return self


class Simulation:
    """Servers in simulated time, behind a gateway where there are several.

    Attributes:
        timeline: the time.
        facts: of every engine.
        servers: all of them.
        entry: where clients send.
    """

    def __init__(self, costs: Costs, fleet: FleetOptions, seed: int = 0) -> None:
        self.timeline = Timeline()
        self.costs = faster(costs, fleet.speed)
        self.facts = msgspec.structs.replace(costs.engine, **fleet.sizes)
        self.servers = [
            SimulatedServer(
                self.timeline, self.facts, self.costs, _noise(costs, fleet, f"{seed} {place}"),
                fleet.max_itl_ms, admits=fleet.admission, drafts=_drafts(fleet, f"{seed} {place}"),
            )
            for place in range(fleet.engines)
        ]  # fmt: skip
        self.entry: Sends = self.servers[0]
        if len(self.servers) > 1:
            self.entry = Fleet(self.timeline, self.servers, self.facts, fleet.policy, seed)

    def notes(self) -> list[str]:
        """What a reader must know."""
        most = Work(*(max(s.engine.most[i] for s in self.servers) for i in range(5)))  # type: ignore[arg-type]
        found = list(self.costs.notes)
        if beyond := self.costs.beyond(most):
            found.append(f"Extrapolated: steps were larger than any that was measured: {beyond}.")
        if refused := sum(server.refused for server in self.servers):
            found.append(f"Admission refused {refused} requests with 429.")
        preempted = sum(server.engine.scheduler.stats().preemptions for server in self.servers)
        if preempted:
            found.append(f"{preempted} preemptions for want of KV blocks.")
        found.append(
            f"Simulated: {self.timeline.now:,.1f} s of {len(self.servers)} engine(s), computing "
            f"{100 * self.busy:.0f} % of the time."
        )
        return found

    @property
    def busy(self) -> float:
        """Share of the time in which engines computed."""
        busy = sum(server.engine.busy for server in self.servers)
        return busy / max(self.timeline.now * len(self.servers), 1e-9)

    @property
    def limit(self) -> str:
        """What requests waited for: see `SimulatedEngine.waits`."""
        waits = Counter[str]()
        for server in self.servers:
            waits.update(server.engine.waits)
        idle = "computing" if self.busy > _BUSY else "nothing"
        return max(waits, key=lambda name: waits[name], default=idle)


def _noise(costs: Costs, fleet: FleetOptions, seed: str) -> Callable[[], float]:
    return noise(costs.residuals.ratios, seed) if fleet.noise else no_noise


def _drafts(fleet: FleetOptions, seed: str) -> Drafts | None:
    if fleet.acceptance is None:
        return None
    return Drafts(Speculation(fleet.acceptance, fleet.draft_ms / 1000), DRAFT, seed)


def faster(costs: Costs, speed: float) -> Costs:
    """Costs of steps that take `speed` times less."""
    if speed == 1.0:
        return costs
    step = costs.step
    scaled = msgspec.structs.replace(
        step,
        tokens=tuple((tokens, seconds / speed) for tokens, seconds in step.tokens),
        projection=step.projection / speed,
        sample=step.sample / speed,
        pair=step.pair / speed,
        reach=step.reach / speed,
    )
    note = f"Steps take {speed:g} times less than was measured."
    return msgspec.structs.replace(costs, step=scaled, notes=(*costs.notes, note))


def check_workload(options: BenchOptions) -> None:
    """Refuse what a simulation cannot answer.

    Raises:
        TidemillError: kind CONFIG, `param` naming the option.
    """
    for name in ("answers", "perplexity"):
        if getattr(options, name) is not None:
            raise config_error(name, f"{name}: a simulated model has no quality to measure")


def simulate(
    options: BenchOptions,
    costs: Costs,
    fleet: FleetOptions = FleetOptions(),
    progress: Progress = lambda *_: None,
) -> BenchReport:
    """Simulate every point of `options`; see `bench.load.run_bench`.

    Servers keep what they learned and cached from point to point, as real ones do. Equal options,
    costs and seeds give equal figures on every machine.

    Raises:
        TidemillError: CONFIG for invalid options.
    """
    options.validate()
    fleet.validate()
    check_workload(options)
    simulation = Simulation(costs, fleet, options.seed)
    loops = SimulatedLoops(
        simulation.timeline, simulation.entry, Prompts(options.seed), think=options.think,
        timeout=options.timeout, max_seconds=options.max_seconds,
        max_concurrency=options.max_concurrency,
    )  # fmt: skip
    run = Run(options, Workload(options), loops, progress, _NoMeter)
    search = at_once(run.all_points())
    lengths = str(options.lengths_file or options.trace or "")
    return BenchReport(
        base_url="simulated",
        model=costs.engine.model,
        endpoint=options.endpoint,
        input_tokens=lengths or str(options.input_tokens),
        output_tokens=lengths or str(options.output_tokens),
        points=run.points,
        label=options.label or f"{costs.engine.model}, simulated",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=TOOL,
        workload={**workload_facts(options), **fleet_facts(fleet)},
        objectives=dict(options.objectives),
        search=search,
        notes=[*run.notes(), *simulation.notes()],
    )


def fleet_facts(fleet: FleetOptions) -> dict[str, object]:
    """The options of a fleet that differ from their defaults."""
    plain = FleetOptions()
    names = ("engines", "policy", "max_itl_ms", "speed", "noise", "admission",
             "acceptance", "draft_ms")  # fmt: skip
    found: dict[str, object] = {
        name: getattr(fleet, name) for name in names if getattr(fleet, name) != getattr(plain, name)
    }
    return {**found, **fleet.sizes}


class _NoMeter:
    """Nothing consumes energy here."""

    def read(self) -> dict[str, float]:
        """See `bench.points.Meter`."""
        return {}
