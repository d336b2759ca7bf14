"""Decoding ahead changes no figure: every number is what step by step it would be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.simulated_costs import costs

from tidemill.bench.options import BenchOptions
from tidemill.bench.report import report_json
from tidemill.contract.plan import StepPlan
from tidemill.sched.scheduler import Scheduler
from tidemill.simulate.adapters import AdapterSizes
from tidemill.simulate.engine import SimulatedEngine
from tidemill.simulate.run import FleetOptions, simulate

NOISE = (0.7, 0.9, 0.97, 1.0, 1.1, 1.6)

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "a fleet": (
        {"rates": (12.0,), "requests": 60, "output_tokens": "lognormal:70:0.7"},
        {"engines": 4, "policy": "predicted"}, {},
    ),
    "closed streams": ({"concurrency": (1, 6), "requests": 18, "output_tokens": 90}, {}, {}),
    "no noise": ({"rates": (3.0,), "requests": 30, "output_tokens": 80}, {"noise": False}, {}),
    "turns": (
        {"concurrency": (3,), "requests": 12, "turns": 3, "output_tokens": 70, "think": 0.05}, {},
        {},
    ),
    "little memory": (
        {"concurrency": (6,), "requests": 12, "input_tokens": 60, "output_tokens": 160},
        {"admission": False}, {"num_blocks": 24},
    ),
    "clients that leave": (
        {"rates": (20.0,), "requests": 30, "output_tokens": 400, "timeout": 2.5}, {"engines": 2},
        {},
    ),
    "full queues": (
        {"rates": (60.0,), "requests": 80, "output_tokens": 60}, {},
        {"num_blocks": 64, "max_model_len": 512},
    ),
    "shared prefixes and windows": (
        {"rates": (5.0,), "requests": 40, "shared_prefix": 96, "prefix_groups": 2}, {"speed": 3.0},
        {"groups": 2},
    ),
    "a limit of latency": (
        {"rates": (4.0,), "requests": 30, "output_tokens": 60}, {"max_itl_ms": 40.0}, {},
    ),
    "adapters": (
        {"rates": (8.0,), "requests": 40, "output_tokens": 70, "models": ("a", "b", "c", "d")},
        {"adapters": AdapterSizes(20 << 20, 50 << 20, 2e8)}, {"weight_bytes": 600 << 20},
    ),
    "recurrent": ({"concurrency": (3,), "requests": 9}, {}, {"recurrent": True, "snapshots": 8}),
}  # fmt: skip


def figures(name: str, *, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    how, fleet, sizes = CASES[name]
    planned = 0
    plan = Scheduler.plan

    def counted(self: Scheduler) -> StepPlan | None:
        nonlocal planned
        planned += 1
        return plan(self)

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedEngine, "decodes_ahead", ahead)
        patched.setattr(Scheduler, "plan", counted)
        report = simulate(
            BenchOptions("", **{"warmup": 0, "seed": 3, **how}), costs(ratios=NOISE, **sizes),
            FleetOptions(**fleet),
        )  # fmt: skip
    said = json.loads(report_json(report))
    return json.dumps([said["points"], report.notes]), planned


@pytest.mark.parametrize("name", CASES)
def test_figures_are_the_same_to_the_last_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, few = figures(name, ahead=True, monkeypatch=monkeypatch)
    slow, many = figures(name, ahead=False, monkeypatch=monkeypatch)
    assert fast == slow
    if name != "recurrent":  # its steps are not launched ahead
        assert few < 0.8 * many
