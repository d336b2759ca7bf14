"""Simulated against measured: loads that costs were not fitted to, in the same hour.

Two servers of one model (one with a small KV cache) are measured in turns: calibration loads, then
each load, and again for every round. The engines record their steps (`recorded/sitecustomize.py`);
costs are fitted to the steps of the calibration loads alone. On a machine that others use, a load's
own minutes may be slower than those of the calibration: a second table has the same costs with the
noise that the load's own steps had, which shows what scheduler, queues and API process add.

    .venv/bin/python benchmarks/simulate_check.py [--model NAME] [--rounds 2] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import harness
import msgspec

from tidemill.base.clock import monotonic
from tidemill.bench.load import run_bench
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import PointReport
from tidemill.planning.kept import this_machine
from tidemill.simulate.costs import Costs, EngineFacts, HostSeconds, Work, write_costs
from tidemill.simulate.fit import Step, fit, fit_gaps
from tidemill.simulate.http_costs import Answers, measure_http
from tidemill.simulate.run import FleetOptions, simulate

DOC = harness.ROOT / "docs" / "simulation.md"
FOLDER = harness.WORK / "simulate-check"
KV = {"roomy": "2GiB", "tight": "236MiB"}

# Closed loops of all numbers of rows, prompts of all lengths beside them.
ONE = {"concurrency": (1,), "requests": 8, "input_tokens": "uniform:16:400", "output_tokens": 24}
CALIBRATION = (
    ONE,
    {"concurrency": (3,), "requests": 9, "input_tokens": "uniform:16:900", "output_tokens": 24},
    {"concurrency": (10,), "requests": 20, "input_tokens": "uniform:16:300", "output_tokens": 24},
    {"concurrency": (24,), "requests": 36, "input_tokens": "uniform:8:200", "output_tokens": 20},
)


@dataclass(frozen=True)
class Load:
    """A load, and the server that gets it."""

    name: str
    how: dict[str, Any]
    server: str = "roomy"


LOADS = (
    Load("1 stream, 128 + 48", {"concurrency": (1,), "requests": 6, "input_tokens": 128}),
    Load("4 streams, 200 + 48", {"concurrency": (4,), "requests": 16}),
    Load("16 streams, 100 + 48", {"concurrency": (16,), "requests": 40, "input_tokens": 100}),
    Load("open, Poisson, half loaded", {"rates": (0.6,), "requests": 24}),
    Load("open, bursts", {"rates": (0.7,), "arrivals": "gamma", "burstiness": 0.3, "requests": 24}),
    Load(
        "shared prefix of 320, 4 streams",
        {"concurrency": (4,), "requests": 20, "input_tokens": 384, "shared_prefix": 320},
    ),
    Load("long prompts beside streams", {"concurrency": (6,), "requests": 24, "mixed": True}),
    Load(
        "lengths drawn, 8 streams",
        {
            "concurrency": (8,), "requests": 24, "input_tokens": "lognormal:120:0.9:900",
            "output_tokens": "lognormal:40:0.6:120",
        },
    ),
    Load(
        "small KV cache: preemption",
        {"concurrency": (10,), "requests": 20, "input_tokens": 100, "output_tokens": 160},
        "tight",
    ),
)  # fmt: skip

QUICK = ("1 stream, 128 + 48", "4 streams, 200 + 48", "open, Poisson, half loaded",
         "shared prefix of 320, 4 streams")  # fmt: skip


def options_of(how: dict[str, Any], url: str, seed: int) -> BenchOptions:
    how = dict(how)
    if how.pop("mixed", False):
        path = FOLDER / "mixed.jsonl"
        rows = [[64, 48]] * 5 + [[1400, 16]]
        path.write_text("\n".join(map(json.dumps, rows)))
        how["lengths_file"] = path
    # Without a warm-up: its steps would be taken for those of the requests that count.
    known = {"output_tokens": 48, "token_ids": True, "seed": seed, "warmup": 0}
    return BenchOptions(url, **{**known, **how})


Window = tuple[float, float]


class Measured:
    """A server, and what its engine recorded."""

    def __init__(self, server: harness.Server, steps: Path) -> None:
        self.server = server
        self._file = steps

    def bench(self, options: BenchOptions) -> tuple[PointReport, Window]:
        began = monotonic()
        (point,) = run_bench(replace(options, base_url=self.server.url)).points
        return point, (began, monotonic())

    def _lines(self) -> Iterator[Any]:
        yield from map(json.loads, self._file.read_text().splitlines())

    def facts(self) -> dict[str, Any]:
        return next(self._lines())

    def steps(self, *windows: Window) -> list[Step]:
        return [Step(Work(*work), seconds) for work, seconds in self._within("step", windows)]

    def gaps(self, *windows: Window) -> list[tuple[int, float]]:
        return [(rows, seconds) for rows, seconds in self._within("gap", windows)]

    def _within(self, kind: str, windows: Sequence[Window]) -> list[list[Any]]:
        return [
            rest
            for line in self._lines()
            if isinstance(line, list) and line[0] == kind
            for when, *rest in [line[1:]]
            if any(begin <= when <= end for begin, end in windows)
        ]


@contextlib.contextmanager
def servers(model: Path, quantize: str) -> Iterator[dict[str, Measured]]:
    with contextlib.ExitStack() as stack:
        found = {}
        for name, memory in KV.items():
            steps = FOLDER / f"steps-{name}.jsonl"
            steps.unlink(missing_ok=True)
            command = [
                str(harness.TIDEMILL), "serve", str(model), "--quantize", quantize,
                "--kv-memory", memory, "--port", "{port}", "--host", "127.0.0.1",
                "--speculate", "off", "--max-model-len", "2048",
            ]  # fmt: skip
            environment = {
                "STEPS": str(steps), "PYTHONPATH": str(harness.ROOT / "benchmarks" / "recorded"),
            }  # fmt: skip
            log = FOLDER / f"{name}.log"
            server = stack.enter_context(harness.serving(command, environment=environment, log=log))
            found[name] = Measured(server, steps)
            found[name].bench(options_of(CALIBRATION[2], "", 99))  # caches are warm, costs learned
            server.pause()
        yield found


@dataclass
class Calibration:
    """What calibration loads said: windows of their steps, and answers that tell what requests
    take beside them."""

    windows: list[Window]
    answers: Answers

    def measure(self, measured: Measured, seed: int) -> None:
        for place, how in enumerate(CALIBRATION):
            _, window = measured.bench(options_of(how, "", seed + place))
            self.windows.append(window)
        asyncio.run(
            measure_http(measured.server.url, 1.0, longest=1024, seed=seed, into=self.answers)
        )

    def costs(self, measured: Measured, model: str) -> Costs:
        seconds, residuals, largest = fit(measured.steps(*self.windows))
        step, row = fit_gaps(measured.gaps(*self.windows))
        host = self.answers.costs(HostSeconds(step=step, row=row))
        return Costs(
            engine=EngineFacts(model=model, **measured.facts()), machine=this_machine(),
            step=seconds, host=host, residuals=residuals, measured=largest,
            created=datetime.now(UTC).isoformat("T", "seconds"),
        )  # fmt: skip


ROWS = (
    ("tok/s", lambda point: point.output_throughput, 0.10),
    ("TTFT p50", lambda point: point.latencies["ttft"]["p50"], 0.10),
    ("TTFT p99", lambda point: point.latencies["ttft"]["p99"], 0.15),
    ("ITL p50", lambda point: point.latencies["itl"]["p50"], 0.10),
    ("ITL p99", lambda point: point.latencies["itl"]["p99"], 0.15),
)


@dataclass(frozen=True)
class Result:
    """A load as it was measured: its seed, its point and its own steps."""

    seed: int
    point: PointReport
    steps: list[Step]


def own_noise(costs: Costs, steps: Sequence[Step]) -> Costs:
    """The costs, with the ratios that these steps had."""
    ratios = sorted(step.seconds / costs.step.of(step.work) for step in steps)
    residuals = msgspec.structs.replace(costs.residuals, ratios=tuple(ratios))
    return msgspec.structs.replace(costs, residuals=residuals)


def table(
    costs: Costs,
    results: dict[str, list[Result]],
    blocks: dict[str, int],
    loads: Sequence[Load],
    *,
    own: bool,
) -> list[str]:
    lines = [
        "| load | " + " | ".join(name for name, *_ in ROWS) + " |",
        "|---|" + "---|" * len(ROWS),
    ]
    within = total = 0
    for load in loads:
        fleet = FleetOptions(sizes={"num_blocks": blocks[load.server]})
        pairs = []
        for one in results[load.name]:
            known = own_noise(costs, one.steps) if own else costs
            simulated = simulate(options_of(load.how, "", one.seed), known, fleet).points[0]
            pairs.append((simulated, one.point))
        cells = []
        for _, value, goal in ROWS:
            simulated = median(value(one) for one, _ in pairs)
            seen = [value(point) for _, point in pairs]
            miss = simulated / median(seen) - 1
            within, total = within + (abs(miss) <= goal), total + 1
            spread = f" ({min(seen):.4g} to {max(seen):.4g})" if len(seen) > 1 else ""
            mark = "" if abs(miss) <= goal else "**"
            cells.append(f"{simulated:.4g} / {median(seen):.4g}{spread} {mark}{miss:+.0%}{mark}")
        lines.append(f"| {load.name} | " + " | ".join(cells) + " |")
    return [
        *lines, "",
        f"{within} of {total} figures are within their goal (10 %, 99th percentiles 15 %; others "
        "in bold). Simulated / median measured, in brackets the least and the largest measured.",
    ]  # fmt: skip


def write_section(text: str) -> None:
    begin, end = "<!-- simulate-check: begin -->", "<!-- simulate-check: end -->"
    page = DOC.read_text()
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    DOC.write_text(f"{head}{begin}\n{text}\n{end}{tail}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="brook-as-qwen3-0.6b")
    parser.add_argument("--quantize", default="q8_0")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one round of few loads (4 minutes)")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args(arguments)
    rounds = 1 if args.quick else args.rounds
    FOLDER.mkdir(parents=True, exist_ok=True)
    model = harness.make_model(args.model)
    calibration = Calibration([], Answers())
    loads = [load for load in LOADS if not args.quick or load.name in QUICK]
    windows: list[tuple[str, int, PointReport, str, Window]] = []
    with servers(model, args.quantize) as found:
        for number in range(rounds):
            for place, load in enumerate(loads):
                if place % (2 if args.quick else 3) == 0:
                    with running(found["roomy"]):
                        calibration.measure(found["roomy"], 10_000 + 1000 * number + 10 * place)
                seed = 100 * number + place  # equal seeds are equal prompts, which are cached
                with running(found[load.server]):
                    point, window = found[load.server].bench(options_of(load.how, "", seed))
                windows.append((load.name, seed, point, load.server, window))
                print(load.name, f"{point.output_throughput:.1f} tok/s", flush=True)
        costs = calibration.costs(found["roomy"], args.model)
        blocks = {name: one.facts()["num_blocks"] for name, one in found.items()}
        results: dict[str, list[Result]] = {load.name: [] for load in loads}
        for name, seed, point, server, window in windows:
            results[name].append(Result(seed, point, found[server].steps(window)))
    write_costs(costs, FOLDER / "costs.json")
    residuals, host = costs.residuals, costs.host
    shares = len(residuals.ratios)
    text = "\n".join([
        harness.machine_line(f"{args.model}, {args.quantize}"), "",
        f"Costs: {residuals.steps} steps of the calibration loads, of which the fit misses "
        f"{residuals.error:.1%} in the median of classes. Single steps took "
        f"{residuals.ratios[shares // 20]:.2f} (5 %) to {residuals.ratios[-shares // 20]:.2f} "
        f"(95 %) times what was fitted; a request "
        f"{1000 * (host.request + host.deliver):.1f} ms beside its steps.",
        "", *table(costs, results, blocks, loads, own=False),
        "", "The same with the noise that each load's own steps had:",
        "", *table(costs, results, blocks, loads, own=True),
    ])  # fmt: skip
    print(text)
    if args.write:
        write_section(text)


@contextlib.contextmanager
def running(measured: Measured) -> Iterator[None]:
    measured.server.resume()
    try:
        yield
    finally:
        measured.server.pause()


if __name__ == "__main__":
    main()
