"""How often rollouts decide rightly, on simulated traffic; run by `make rollouts`.

Writes the table of docs/rollouts.md, and fails when a worse version is not rolled back, or a good
one not promoted, in 95 % of the simulations.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rollouts.simulation import Outcome, Version, simulate
from tidemill.server.host.rollout.machine import Phase
from tidemill.server.host.rollout.traffic import Canary

ROOT = Path(__file__).resolve().parents[2]
RULE = Canary(stable="1", canary="2", steps=(5, 25, 50), seconds=60)

# Name -> the canary, and the share of simulations that must and may end so.
SCENARIOS: dict[str, tuple[Version, dict[Phase, float], dict[Phase, float]]] = {
    "the same": (Version(), {Phase.PROMOTED: 0.95}, {Phase.ROLLED_BACK: 0.05}),
    "5 % errors": (Version(error_rate=0.05), {Phase.ROLLED_BACK: 0.95}, {}),
    "all requests fail": (Version(error_rate=1.0), {Phase.ROLLED_BACK: 1.0}, {}),
    "30 % slower": (Version(slower=1.3), {Phase.ROLLED_BACK: 0.95}, {}),
    "answers 40 % shorter": (Version(length=0.6), {Phase.ROLLED_BACK: 0.95}, {}),
    # So near the limit of 20 % that many are undecided when the simulation ends.
    "answers 30 % shorter": (Version(length=0.7), {}, {Phase.PROMOTED: 0.05}),
    # At the limit itself neither answer is right; each may be given with probability alpha.
    "15 % slower, the limit": (
        Version(slower=1.15),
        {},
        {Phase.ROLLED_BACK: 0.05, Phase.PROMOTED: 0.05},
    ),
    "first token 30 % slower": (Version(ttft=1.3), {Phase.ROLLED_BACK: 0.95}, {}),
}


def outcomes(version: Version, seeds: Sequence[int], rule: Canary = RULE) -> list[Outcome]:
    """Simulations with all processors."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(partial(simulate, rule, version), seeds, chunksize=5))


def shares(ended: Sequence[Outcome]) -> dict[Phase, float]:
    """How many of the simulations ended in which phase."""
    return {phase: sum(o.phase is phase for o in ended) / len(ended) for phase in Phase}


def faults(
    found: dict[Phase, float], least: dict[Phase, float], most: dict[Phase, float]
) -> list[str]:
    """What is below or above what is promised."""
    low = [
        f"{phase}: {found[phase]:.1%} < {p:.0%}" for phase, p in least.items() if found[phase] < p
    ]
    high = [
        f"{phase}: {found[phase]:.1%} > {p:.0%}" for phase, p in most.items() if found[phase] > p
    ]
    return low + high


def show(name: str, ended: Sequence[Outcome]) -> str:
    """A row of the table."""
    found = shares(ended)
    canary = sorted(o.canary_requests for o in ended)
    late = canary[int(0.95 * (len(canary) - 1))]
    return (
        f"| {name} | {found[Phase.PROMOTED]:.1%} | {found[Phase.ROLLED_BACK]:.1%} "
        f"| {found[Phase.RUNNING]:.1%} | {statistics.median(canary):,.0f} ({late:,}) "
        f"| {statistics.median(o.requests for o in ended):,.0f} "
        f"| {statistics.median(o.seconds for o in ended) / 60:.0f} min |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="simulations per scenario")
    parser.add_argument("--report", type=Path, default=ROOT / "docs/rollouts.md")
    parser.add_argument("--write", action="store_true", help="write the table into the report")
    options = parser.parse_args(arguments)
    wrong = []
    table = [
        "| canary | promoted | rolled back | undecided | requests of the canary, median (p95) "
        "| of both, median | time, median |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (version, least, most) in SCENARIOS.items():
        ended = outcomes(version, range(options.runs))
        table.append(show(name, ended))
        print(table[-1], flush=True)
        wrong += [f"{name}: {fault}" for fault in faults(shares(ended), least, most)]
    if options.write:
        text = options.report.read_text()
        begin, end = "<!-- simulations -->", "<!-- end of simulations -->"
        block = "\n".join([begin, "", *table, "", end])
        text = re.sub(f"{begin}.*?{end}", lambda _: block, text, flags=re.DOTALL)
        options.report.write_text(text)
    print("\n".join(wrong) or "all as promised")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
