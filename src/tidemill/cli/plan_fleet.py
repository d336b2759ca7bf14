"""`tidemill plan --trace` and `--rate`: the cheapest fleet that serves a load."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.base.errors import config_error

if TYPE_CHECKING:
    from tidemill.bench.options import BenchOptions
    from tidemill.planning.plan import Load, Plan
    from tidemill.simulate.search import Candidate, Found


@dataclass(frozen=True, slots=True)
class Demand:
    """What the flags asked for.

    Attributes:
        trace, rate: the load: one of both.
        requests: at most.
        target: share of the requests that must meet the objectives.
        budget: USD per hour.
        most: engines.
        load: lengths of the requests at `rate`, and the objectives.
        as_json: print a document.
        efficiency: of devices that compute together.
    """

    trace: Path | None
    rate: float | None
    requests: int | None
    target: float
    budget: float | None
    most: int
    load: Load
    as_json: bool
    efficiency: float


def plan_fleet(demand: Demand, plans: Sequence[tuple[str, int, Plan]]) -> None:
    """Search, and print what was found. Exits with 1 where nothing serves the load.

    Args:
        demand: what was asked for.
        plans: by device, and how many of it compute together as one engine.
    """
    from tidemill.simulate.search import Search

    def progress(line: str) -> None:
        print(f"simulating {line}", file=sys.stderr)

    kinds = [
        kind
        for name, devices, made in _fitting(plans)
        for kind in _kinds(name, made, devices, demand.efficiency)
    ]
    search = Search(
        _options(demand), kinds, budget=demand.budget, most=demand.most, progress=progress
    )
    found = search.run()
    if demand.as_json:
        print(json.dumps(_document(found), indent=2))
    else:
        _print(found)
    if found.best is None:
        sys.exit(1)


def _options(demand: Demand) -> BenchOptions:
    from tidemill.bench.options import BenchOptions

    if demand.trace is not None and demand.rate is not None:
        raise config_error("rate", "--rate and --trace exclude each other: give one")
    if not demand.load.objectives:
        raise config_error("objective", '--trace and --rate need --objective "ttft<1s,itl<50ms"')
    if demand.most < 1:
        raise config_error("max-engines", "--max-engines must be at least 1")
    return BenchOptions(
        base_url="",
        trace=demand.trace,
        rates=() if demand.rate is None else (demand.rate,),
        requests=max(200, int(30 * demand.rate))
        if demand.requests is None and demand.rate is not None
        else demand.requests,
        input_tokens=demand.load.prompt,
        output_tokens=demand.load.output,
        objectives=demand.load.objectives,
        target=demand.target,
    )


def _fitting(plans: Sequence[tuple[str, int, Plan]]) -> list[tuple[str, int, Plan]]:
    """Those whose model fits; of every device one must."""
    fitting = [plan for plan in plans if plan[2].fit.fits]
    names = {name for name, _, _ in fitting}
    for name, _, made in plans:
        if name not in names:
            raise config_error("memory", f"the model does not fit on {name}: {made.fit.why}")
    return fitting


def _kinds(name: str, made: Plan, devices: int, efficiency: float) -> list[Candidate]:
    from tidemill.planning.fleet import candidates
    from tidemill.planning.plan import timing_of

    timing = timing_of(made)
    if timing is None:
        raise config_error(
            "device",
            "this machine has not been measured: run `tidemill calibrate` first, or give --device",
        )
    device, price = made.where.device, made.where.price
    if price is None and device is not None:
        price = device.price
    if price is None:
        raise config_error(
            "usd-per-hour",
            f"--usd-per-hour: the price of {name} is not known; give one, 1 to count engines",
        )
    return candidates(made, timing, devices * price, name, devices, efficiency)


def _document(found: Found) -> dict[str, Any]:
    best = found.best
    return {
        "schema": "tidemill.fleet/1",
        "best": None
        if best is None
        else {
            "device": best.candidate.name,
            "engines": best.engines,
            "devices_per_engine": best.candidate.devices,
            "cache_tokens": best.candidate.cache_tokens,
            "least_cache_tokens": found.cache,
            "usd_per_hour": best.price,
            "attainment": best.attainment,
            "goodput": best.point.goodput,
            "sizes": dict(best.candidate.fleet.sizes),
            "busy": best.busy,
            "limit": best.limit,
            "latencies": best.point.latencies,
            "notes": list(best.candidate.costs.notes),
        },
        "headroom": None
        if found.headroom is None
        else {"times_the_load": found.headroom[0], "with_one_more": found.headroom[1]},
        "probes": [
            {
                "device": probe.candidate.name,
                "engines": probe.engines,
                "usd_per_hour": probe.price,
                "attainment": probe.attainment,
                "passed": probe.passed,
                "misses": dict(probe.misses),
                "limit": probe.limit,
            }
            for probe in found.probes
        ],
        "out": found.out,
        "sentences": found.sentences(),
    }


def _print(found: Found) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    table = Table(title="Simulated fleets", title_justify="left", box=None)
    for place, column in enumerate(
        ("engines of", "", "USD/h", "met", "TTFT p99 ms", "ITL p99 ms", "waits for")
    ):
        table.add_column(column, justify="left" if place in (0, 6) else "right")
    for probe in found.probes:
        latencies = probe.point.latencies
        table.add_row(
            probe.candidate.name,
            str(probe.engines),
            f"{probe.price:,.2f}",
            f"{probe.attainment:.1%}" if probe.passed else f"< {probe.attainment:.1%}",
            _milliseconds(latencies["ttft"]["p99"]),
            _milliseconds(latencies["itl"]["p99"]),
            "" if probe.passed else probe.limit,
            style="bold" if probe is found.best else None,
        )
    console.print(table)
    for sentence in found.sentences():
        console.print(sentence, markup=False, soft_wrap=True)


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if not value < 10 else f"{value:.2g}"
