"""A plan against what it promises: two engines behind the gateway, on this machine.

The model is calibrated with one thread. The highest rate whose requests meet the objectives on two
such engines is searched for by simulation, then by `tidemill bench` at a gateway before two servers
of a thread each. The goal is 10 %. It needs a machine that does nothing else.

    .venv/bin/python benchmarks/plan_check.py [--model brook] [--seconds 60]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
from collections.abc import Sequence

import harness

from tidemill.bench.load import run_bench
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import BenchReport
from tidemill.simulate.costs import read_costs
from tidemill.simulate.run import FleetOptions, simulate

FOLDER = harness.WORK / "plan-check"
FLAGS = ("--threads", "1", "--kv-memory", "512MiB", "--max-model-len", "2048")


def options_of(url: str, model: str, objectives: dict[str, float], requests: int) -> BenchOptions:
    return BenchOptions(
        url, model=model, objectives=objectives, goodput=True, requests=requests,
        input_tokens="lognormal:200:0.6:900", output_tokens="lognormal:60:0.5:200", seed=5,
    )  # fmt: skip


def measured(model: str, objectives: dict[str, float], requests: int) -> BenchReport:
    with contextlib.ExitStack() as stack:
        urls = []
        for number in range(2):
            command = [str(harness.TIDEMILL), "serve", model, "--port", "{port}", *FLAGS,
                       "--speculate", "off", "--database", "none"]  # fmt: skip
            log = FOLDER / f"server-{number}.log"
            server = stack.enter_context(harness.serving(command, log=log))
            urls.append(server.url.removesuffix("/v1"))
        file = FOLDER / "gateway.toml"
        file.write_text(
            "".join(
                f'[[targets]]\nname = "{name}"\nurl = "{url}"\nkind = "tidemill"\n'
                for name, url in zip("ab", urls, strict=True)
            )
        )
        command = [str(harness.TIDEMILL), "gateway", "--config", str(file), "--port", "{port}",
                   "--database", "none"]  # fmt: skip
        gateway = stack.enter_context(harness.serving(command, log=FOLDER / "gateway.log"))
        return run_bench(options_of(gateway.url, model, objectives, requests))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="brook")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--ttft", type=float, default=300.0, help="milliseconds")
    parser.add_argument("--tpot", type=float, default=20.0, help="milliseconds")
    args = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / "costs.json"
    command = [str(harness.TIDEMILL), "calibrate", args.model, *FLAGS, "--seconds",
               str(args.seconds), "--save", str(file)]  # fmt: skip
    subprocess.run(command, check=True)
    objectives = {"ttft": args.ttft, "tpot": args.tpot}
    options = options_of("", args.model, objectives, args.requests)
    planned = simulate(options, read_costs(file), FleetOptions(engines=2))
    found = measured(args.model, objectives, args.requests)
    for name, report in (("planned", planned), ("measured", found)):
        print(name, report.search)
    print(harness.machine_line(f"{args.model}, two engines of one thread behind the gateway"))
    predicted, reached = ((report.search or {}).get("rate") for report in (planned, found))
    if not predicted or not reached:
        print(f"planned {predicted} requests/s, measured {reached}: objectives are not met at any")
        return
    print(f"planned {predicted:.2f} requests/s, measured {reached:.2f}: "
          f"{predicted / reached - 1:+.0%} (goal: 10 %)")  # fmt: skip


if __name__ == "__main__":
    main()
