"""Scaled fleets: the cluster's own rule, engines that start and end, requests that wait."""

from __future__ import annotations

import re
from typing import Any

import pytest
from helpers.simulated_costs import HOST, costs

from tidemill.base.errors import TidemillError
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import BenchReport
from tidemill.cluster.scaling import Objectives
from tidemill.simulate.run import FleetOptions, simulate
from tidemill.simulate.scaling import Scaling, read_scaling

QUICK: dict[str, Any] = {"cooldown": 5.0, "stabilization": 20.0, "idle": 30.0}


def simulated(scaling: Scaling | None, engines: int = 1, **how: Any) -> BenchReport:
    options = BenchOptions("", **{"warmup": 0, "output_tokens": 40, **how})
    return simulate(options, costs(), FleetOptions(engines, noise=False, scaling=scaling))


def scaled(start: float = 8.0, **how: Any) -> Scaling:
    own = {name: how.pop(name) for name in ("hold", "max_held", "ttft") if name in how}
    return Scaling(Objectives(**{**QUICK, **how}), start, **own)


def engine_seconds(report: BenchReport) -> float:
    seconds, engines = re.findall(r"([\d.,]+) s of ([\d.]+) engine", report.notes[-1])[0]
    return float(seconds.replace(",", "")) * float(engines)


def starts(report: BenchReport) -> tuple[int, int]:
    told = next(note for note in report.notes if "Autoscaled" in note)
    made, most = re.findall(r"\d+", told)
    return int(made), int(most)


def test_the_first_request_brings_an_engine() -> None:
    report = simulated(scaled(min_engines=0), concurrency=(1,), requests=5)
    (point,) = report.points
    assert point.completed == 5 and starts(report) == (1, 1)
    alone = simulated(None, concurrency=(1,), requests=5).points[0].latencies["ttft"]["mean"]
    # One of five waits, for the first look, which is after a second, and for the start.
    waited = 5 * (point.latencies["ttft"]["mean"] - alone)
    assert waited == pytest.approx(1000 * (1.0 + 8.0), rel=0.01)


def test_the_last_engine_goes_and_comes_back() -> None:
    """Two turns, 100 s apart: between them the model has no engine for some time."""
    scaling = scaled(min_engines=0, start=4.0)
    report = simulated(scaling, concurrency=(1,), requests=2, turns=2, think=100.0)
    (point,) = report.points
    assert point.completed == 2 and starts(report) == (2, 1)
    assert 4300 < point.latencies["ttft"]["mean"] < 5200
    # Each start, an answer, 30 s of idleness and a look.
    assert engine_seconds(report) == pytest.approx(4 + 1 + 31 + 4 + 1, abs=2.5)


def test_a_fleet_grows_with_its_load() -> None:
    """A load that grows to what four engines carry."""
    how: dict[str, Any] = {"ramp": (0.5, 16.0), "duration": 120.0, "output_tokens": 100}
    one, four = (simulated(None, engines, **how) for engines in (1, 4))
    report = simulated(scaled(max_engines=4, target_running=8.0), **how)
    made, most = starts(report)
    assert made >= 3 and most == 4
    late = [r.points[0].latencies["ttft"]["p90"] for r in (one, report, four)]
    assert late[0] > 3 * late[1] and late[1] < 3 * late[2]
    assert engine_seconds(report) < 0.9 * engine_seconds(four)


def test_engines_leave_once_their_requests_have_ended() -> None:
    """Bursts: nothing fails where engines are drained between them."""
    report = simulated(
        scaled(max_engines=4, target_load=0.1, start=1.0), rates=(3.0,), requests=400,
        arrivals="gamma", burstiness=0.02, output_tokens=100,
    )  # fmt: skip
    (point,) = report.points
    assert point.completed == 400 and not point.errors
    made, most = starts(report)
    assert made > most - 1  # some came back


def test_too_many_requests_are_not_held() -> None:
    report = simulated(scaled(min_engines=0, max_held=3), concurrency=(8,), requests=8)
    assert report.points[0].errors["http 429"] > 0
    report = simulated(scaled(min_engines=0, hold=5.0), concurrency=(2,), requests=2)
    assert report.points[0].errors == {"http 503": 2}


def test_equal_seeds_scale_equally() -> None:
    how: dict[str, Any] = {"rates": (6.0,), "requests": 200, "seed": 5}
    one, two = (simulated(scaled(max_engines=3, target_load=0.1), **how) for _ in range(2))
    assert one.notes == two.notes and one.points[0].latencies == two.points[0].latencies


def test_the_command_line_says_how() -> None:
    told = "min=0, max=8,target-wait=2s,stabilization=5m,start=30s,ttft=500ms"
    assert read_scaling(told) == Scaling(
        Objectives(min_engines=0, max_engines=8, target_wait=2.0, stabilization=300.0),
        30.0, ttft=0.5,
    )  # fmt: skip
    assert read_scaling("") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("most=3", "'most' is none of .*target-load"),
        ("max=three", "'max=three'"),
        ("min=5,max=2", "min_engines"),
        ("start=0", "start must be above 0"),
        ("interval=1us", "'interval=1us'"),
        ("interval=1e-7", "interval must be at least 0.01 seconds"),
        ("start=nan", "'start=nan' has no such value"),
        ("max=100000000", "max must be at most"),
    ],
)
def test_what_it_cannot_read_is_named(text: str, says: str) -> None:
    with pytest.raises(TidemillError, match=says):
        read_scaling(text)


def test_a_start_that_nobody_measured_is_asked_for() -> None:
    assert not HOST.start
    with pytest.raises(TidemillError, match="start=30s"):
        simulated(Scaling(Objectives(min_engines=0)))
