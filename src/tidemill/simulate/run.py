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
from tidemill.contract.moves import Tier
from tidemill.contract.speculation import DRAFT
from tidemill.gateway.routing.policy import DEFAULT, POLICIES
from tidemill.simulate.adapters import AdapterSizes
from tidemill.simulate.costs import Costs, EngineFacts, Work
from tidemill.simulate.drafts import Drafts, Speculation
from tidemill.simulate.engine import Parts
from tidemill.simulate.fleet import Fleet
from tidemill.simulate.loops import Sends, SimulatedLoops, at_once
from tidemill.simulate.noise import no_noise, noise
from tidemill.simulate.prompts import Prompts
from tidemill.simulate.scaling import MOST_ENGINES, Scaler, Scaling
from tidemill.simulate.server import SimulatedServer
from tidemill.simulate.tiers import Directory, TierSizes
from tidemill.simulate.timeline import Timeline

TOOL = "tidemill simulate"

_TIERS = {Tier.RAM: "memory", Tier.DISK: "disk", Tier.PEER: "other engines"}

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
        adapters: what names other than the model's own stand for; None: for the model.
        scaling: engines come and go by the cluster's own rule; None: there are `engines`.
        tiers: where KV blocks go that leave an engine's cache, and whether engines bring them from
            one another; None: nowhere.
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
    adapters: AdapterSizes | None = None
    tiers: TierSizes | None = None
    scaling: Scaling | None = None

    def validate(self) -> FleetOptions:
        """Return self if the options make sense.

        Raises:
            TidemillError: kind CONFIG, `param` naming the option.
        """
        if not 1 <= self.engines <= MOST_ENGINES:
            raise config_error("engines", f"engines must be from 1 to {MOST_ENGINES}")
        if self.policy not in POLICIES:
            known = ", ".join(POLICIES)
            raise config_error("policy", f"policy is one of {known}, not {self.policy!r}")
        if self.speed <= 0:
            raise config_error("speed", "speed must be above 0")
        if self.scaling is not None and self.engines > 1:
            raise config_error("engines", "engines: an autoscaled fleet begins with its least")
        if self.max_itl_ms is not None and self.max_itl_ms <= 0:
            raise config_error("max_itl_ms", "max_itl_ms must be above 0")
        if self.acceptance is not None and not 0 <= self.acceptance <= 1:
            raise config_error("acceptance", "acceptance is a share, from 0 to 1")
        if self.draft_ms < 0:
            raise config_error("draft_ms", "draft_ms must be at least 0")
        if self.draft_ms and self.acceptance is None:
            raise config_error("draft_ms", "draft_ms: nothing is drafted without acceptance")
        self._validate_parts()
        for name, value in self.sizes.items():
            if name not in SIZES:
                raise config_error(name, f"sizes are {', '.join(SIZES)}")
            if name != "prefix_caching" and value < 1:
                raise config_error(name, f"{name} must be at least 1")
        return self

    def _validate_parts(self) -> None:
        if (adapters := self.adapters) is not None:
            if min(adapters) <= 0:
                raise config_error("adapters", "an adapter's bytes, memory and bandwidth: above 0")
            if adapters.nbytes > adapters.memory:
                raise config_error("adapter_memory", "adapter_memory holds not even one adapter")
        if self.tiers is not None and min(self.tiers.bandwidth.values()) <= 0:
            raise config_error("kv_bandwidth", "a tier's bandwidth must be above 0")


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
        if fleet.adapters is not None:
            self.costs = with_adapters(self.costs)
        self.facts = msgspec.structs.replace(costs.engine, **fleet.sizes)
        _check_tiers(fleet, self.facts)
        self._fleet, self._seed, self._directory = fleet, seed, Directory()
        self.servers: list[SimulatedServer] = []
        self._scaler: Scaler | None = None
        self.entry: Sends = self._entry(fleet, seed)

    def _entry(self, fleet: FleetOptions, seed: int) -> Sends:
        if fleet.scaling is None and fleet.engines == 1:
            return self._server(0)
        gateway = Fleet(self.timeline, self.facts, fleet.policy, seed)
        if (scaling := fleet.scaling) is None:
            for place in range(fleet.engines):
                gateway.add(f"{place:06}", self._server(place))
            return gateway
        gateway.hold(scaling.hold, scaling.max_held)
        start = self.costs.host.start if scaling.start is None else scaling.start
        if not start:
            raise config_error(
                "autoscale", "these costs do not say how long a server takes to start: start=30s"
            )
        self._scaler = Scaler(
            self.timeline, gateway, scaling, start, self.facts.max_num_seqs, self._server
        )
        return gateway

    def _server(self, place: int) -> SimulatedServer:
        """A server of the fleet, the one with this number."""
        fleet, seed = self._fleet, f"{self._seed} {place}"
        parts = Parts(
            fleet.max_itl_ms, _drafts(fleet, seed), fleet.adapters, fleet.tiers, self._directory,
            place,
        )  # fmt: skip
        server = SimulatedServer(
            self.timeline, self.facts, self.costs, _noise(self.costs, fleet, seed), parts,
            admits=fleet.admission,
        )  # fmt: skip
        self.servers.append(server)
        return server

    def notes(self) -> list[str]:
        """What a reader must know."""
        mosts = [Work(0, 0, 0, 0, 0), *(server.engine.most for server in self.servers)]
        most = Work(*map(max, zip(*mosts, strict=True)))
        found = list(self.costs.notes)
        if beyond := self.costs.beyond(most):
            found.append(f"Extrapolated: steps were larger than any that was measured: {beyond}.")
        if refused := sum(server.refused for server in self.servers):
            found.append(f"Admission refused {refused} requests with 429.")
        preempted = sum(server.engine.scheduler.stats().preemptions for server in self.servers)
        if preempted:
            found.append(f"{preempted} preemptions for want of KV blocks.")
        brought = Counter[Tier]()
        for server in self.servers:
            for told in server.engine.scheduler.stats().tiers:
                brought[told.tier] += told.tokens
        found += [
            f"{tokens:,} tokens were brought from {_TIERS[tier]} rather than computed."
            for tier, tokens in brought.items()
        ]
        engines = f"{len(self.servers)} engine(s)"
        if (scaler := self._scaler) is not None:
            engines = f"{self.engine_seconds / max(self.timeline.now, 1e-9):.2f} engine(s)"
            found.append(f"Autoscaled: {scaler.starts} starts, at most {scaler.most} at a time.")
        found.append(
            f"Simulated: {self.timeline.now:,.1f} s of {engines}, computing "
            f"{100 * self.busy:.0f} % of the time."
        )
        return found

    @property
    def engine_seconds(self) -> float:
        """Seconds that engines have been there, starting ones included."""
        if self._scaler is not None:
            return self._scaler.engine_seconds
        return self.timeline.now * len(self.servers)

    @property
    def busy(self) -> float:
        """Share of the time in which engines computed."""
        busy = sum(server.engine.busy for server in self.servers)
        return busy / max(self.engine_seconds, 1e-9)

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


def with_adapters(costs: Costs) -> Costs:
    """Costs of steps whose rows have adapters. Where that was not measured, a byte of an adapter
    takes as long as a byte of the weights does in a step of one token."""
    step, weights = costs.step, costs.engine.weight_bytes
    if step.adapter_byte:
        return costs
    if not weights:
        raise config_error(
            "costs",
            "these costs know neither what adapters take nor how large the weights are: calibrate "
            "the model again",
        )
    derived = msgspec.structs.replace(step, adapter_byte=step.of_tokens(1) / weights)
    note = "Bytes of adapters are taken to be read like those of the weights: not measured."
    return msgspec.structs.replace(costs, step=derived, notes=(*costs.notes, note))


def _check_tiers(fleet: FleetOptions, facts: EngineFacts) -> None:
    tiers, block = fleet.tiers, facts.kv_bytes_per_token * facts.block_size
    if tiers is None:
        return
    if not block:
        raise config_error("costs", "these costs do not say how large a KV block is")
    if facts.recurrent:
        raise config_error("tiers", "a model with recurrent layers has no tiers below its cache")
    for name, size in (("kv_ram", tiers.ram), ("kv_disk", tiers.disk)):
        if size and size < block:
            raise config_error(name, f"{name} holds not even one block of {block:,} bytes")
    if tiers.peers and fleet.engines < 2 and fleet.scaling is None:
        raise config_error("kv_peers", "kv_peers needs several engines")


def check_models(workload: Workload, fleet: FleetOptions, own: str) -> None:
    """Refuse names of models, other than an engine's own, that nothing is known of.

    Raises:
        TidemillError: kind CONFIG.
    """
    others = workload.models - {own}
    if others and fleet.adapters is None:
        raise config_error(
            "models",
            f"{min(others)!r} is not the model {own!r}, so it is an adapter: say how large one is "
            "(--adapter-size)",
        )


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
    workload = Workload(options)
    check_models(workload, fleet, costs.engine.model)
    simulation = Simulation(costs, fleet, options.seed)
    loops = SimulatedLoops(
        simulation.timeline, simulation.entry, Prompts(options.seed), think=options.think,
        timeout=options.timeout, max_seconds=options.max_seconds,
        max_concurrency=options.max_concurrency,
    )  # fmt: skip
    run = Run(options, workload, loops, progress, _NoMeter)
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
    if fleet.adapters is not None:
        found["adapters"] = fleet.adapters._asdict()
    if (tiers := fleet.tiers) is not None:
        found["tiers"] = {"ram": tiers.ram, "disk": tiers.disk, "peers": tiers.peers}
        found["bandwidth"] = {str(tier): tiers.bandwidth[tier] for tier in tiers.tiers}
    if fleet.scaling is not None:
        found["scaling"] = msgspec.to_builtins(fleet.scaling, order="deterministic")
    return {**found, **fleet.sizes}


class _NoMeter:
    """Nothing consumes energy here."""

    def read(self) -> dict[str, float]:
        """See `bench.points.Meter`."""
        return {}
