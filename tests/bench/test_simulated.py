"""The load generator in simulated time against scripted servers: figures are known exactly."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.simulated_time import Script, ScriptedServer, one_at_a_time, run_simulated

from tidemill.bench.load import measure_server
from tidemill.bench.options import BenchOptions
from tidemill.bench.report import search_line
from tidemill.bench.results import BenchReport
from tidemill.bench.stats import percentile


def measured(script: Script, **how: Any) -> tuple[BenchReport, ScriptedServer]:
    server = ScriptedServer(script)
    options = BenchOptions("http://scripted", **{"warmup": 0, **how}).validate()
    return run_simulated(server, measure_server, options), server


def test_percentiles_are_those_of_the_script() -> None:
    draws = random.Random(1)
    scripted: list[list[float]] = []

    def script(body: dict, number: int, now: float) -> list[float]:
        times = [draws.lognormvariate(-1, 0.7)]
        for _ in range(body["max_tokens"] - 1):
            times.append(times[-1] + draws.expovariate(50))
        scripted.append(times)
        return times

    report, _ = measured(script, rates=(20.0,), requests=300, output_tokens=12)
    (point,) = report.points
    gaps = [b - a for times in scripted for a, b in pairwise(times)]
    expected = {
        "ttft": [t[0] for t in scripted],
        "itl": gaps,
        "tpot": [(t[-1] - t[0]) / 11 for t in scripted],
        "e2e": [t[-1] for t in scripted],
    }
    for name, values in expected.items():
        for q in (50, 90, 95, 99):
            found = point.latencies[name][f"p{q}"]
            assert found == pytest.approx(1000 * percentile(sorted(values), q), rel=1e-3), name
    assert point.output_tokens == 3600 and point.completed == 300


def test_a_stall_counts_for_every_request_that_was_due_in_it() -> None:
    """Coordinated omission: a server that stops for 10 s delays all that were due meanwhile."""

    def script(body: dict, number: int, now: float) -> list[float]:
        stalled = max(0.0, 1005.0 + 10.0 - now) if now > 1005.0 else 0.0
        return [stalled + 0.01]

    how = {"rates": (10.0,), "arrivals": "constant", "requests": 300, "output_tokens": 1}
    (point,), (limited,) = (
        measured(script, **how, max_concurrency=most)[0].points for most in (None, 2)
    )
    # 100 of 300 requests were due in the stall and waited 5 s on average.
    assert point.latencies["e2e"]["p90"] == pytest.approx(7010, rel=0.02)
    # A bound on what is in flight moves the wait into the client, where it still counts.
    assert limited.latencies["e2e"]["p90"] == pytest.approx(7010, rel=0.05)
    assert limited.latencies["ttft"]["p99"] >= point.latencies["ttft"]["p99"] * 0.99


def test_closed_loop_throughput() -> None:
    script = lambda body, number, now: [0.1 * (i + 1) for i in range(body["max_tokens"])]  # noqa: E731
    report, server = measured(script, concurrency=(1, 8), requests=40, output_tokens=5)
    one, eight = report.points
    assert one.output_throughput == pytest.approx(10, rel=1e-3)
    assert eight.output_throughput == pytest.approx(80, rel=1e-3)
    assert server.connections == 8  # kept, and used again


def test_goodput_search_finds_the_capacity() -> None:
    report, _ = measured(
        one_at_a_time(0.05), goodput=True, objectives={"e2e": 100.0}, arrivals="constant",
        output_tokens=1, requests=400, precision=0.01,
    )  # fmt: skip
    found = report.search
    assert found is not None
    # 20/s is served without a queue; above it the wait grows with every request.
    assert found["rate"] == pytest.approx(20, rel=0.03)
    assert found["rate"] < found["above"] <= 1.011 * found["rate"]
    alone, *probes = report.points
    assert alone.mode == "concurrency" and len(probes) == len(found["probes"])
    # A probe that has failed is not measured to its end.
    failed = [p for p in found["probes"] if not p["passed"]]
    assert failed and all(p["requests"] < 400 for p in failed if p["rate"] > 22)
    assert all(p["requests"] == 400 for p in found["probes"] if p["passed"])


def test_a_goodput_search_that_nothing_meets_ends() -> None:
    report, _ = measured(
        one_at_a_time(0.05), goodput=True, objectives={"e2e": 40.0}, output_tokens=1, requests=100
    )
    assert report.search is not None and report.search["rate"] is None
    assert len(report.search["probes"]) == 5
    assert "no rate tried" in search_line(report)


def test_a_trace_that_is_longer_than_the_point_is_pointed_at(tmp_path: Path) -> None:
    rows = [{"timestamp": i * 10, "input": 5, "output": 1} for i in range(10)]
    (path := tmp_path / "trace").write_text("\n".join(map(json.dumps, rows)))
    script = lambda body, number, now: [0.01]  # noqa: E731
    report, server = measured(script, trace=path, speeds=(2.0,), duration=21.0)
    assert len(server.bodies) == 5 and any("5 requests" in note for note in report.notes)
    times = [came - 1000.0 for came, _ in server.bodies]
    assert times == pytest.approx([0, 5, 10, 15, 20])


def test_goodput_under_poisson_arrivals_is_that_of_the_queue() -> None:
    """M/D/1: at the load r the wait is known; 90 % of requests within 3 service times."""
    report, _ = measured(
        one_at_a_time(0.05), goodput=True, objectives={"e2e": 150.0}, target=0.9,
        output_tokens=1, requests=1500, precision=0.03, rates=(8.0,),
    )  # fmt: skip
    assert report.search is not None
    # P(wait <= 2 service times) of M/D/1, by Erlang's formula, is 0.9 at the load 0.587.
    assert report.search["rate"] == pytest.approx(0.587 * 20, rel=0.12)


def test_steady_and_drifting() -> None:
    def warming(body: dict, number: int, now: float) -> list[float]:
        return [0.1 + (0.5 if number < 30 else 0.0) + (number % 7) * 0.002]

    (point,) = measured(warming, concurrency=(1,), requests=200, output_tokens=1)[0].points
    assert point.steady["verdict"] == "steady" and 30 <= point.steady["discarded"] <= 60
    how = {"concurrency": (1,), "requests": 200, "output_tokens": 1, "steady_only": True}
    (point,) = measured(warming, **how)[0].points
    assert 140 <= point.requests <= 170 and point.latencies["e2e"]["max"] < 120
    overload = {"rates": (30.0,), "requests": 200, "output_tokens": 1}
    (point,) = measured(one_at_a_time(0.05), **overload)[0].points
    assert point.steady["verdict"] == "drifting"


def test_ramp_and_bursts() -> None:
    script = lambda body, number, now: [0.01]  # noqa: E731
    _, server = measured(script, ramp=(1.0, 21.0), duration=100.0, output_tokens=1)
    times = [came - 1000.0 for came, _ in server.bodies]
    assert len(times) == pytest.approx(1100, rel=0.1)
    assert sum(t < 50 for t in times) == pytest.approx(300, rel=0.2)  # (1 + 11) / 2 * 50
    for burstiness in (0.25, 4.0):
        how = {"rates": (10.0,), "arrivals": "gamma", "burstiness": burstiness}
        _, server = measured(script, **how, requests=3000, output_tokens=1)
        times = [came for came, _ in server.bodies]
        gaps = [b - a for a, b in pairwise(times)]
        mean = sum(gaps) / len(gaps)
        variation = (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5 / mean
        assert mean == pytest.approx(0.1, rel=0.15)
        assert variation == pytest.approx(burstiness**-0.5, rel=0.15)


def test_conversations_repeat_what_was_said() -> None:
    script = lambda body, number, now: [0.1, 0.2]  # noqa: E731
    report, server = measured(
        script, turns=3, think=1.0, requests=6, input_tokens=5, output_tokens=2, shared_prefix=3,
        prefix_groups=1,
    )  # fmt: skip
    prompts = [body["prompt"] for _, body in server.bodies]
    assert prompts[1].startswith(prompts[0] + "\nw0 w1 \n")
    assert prompts[2].startswith(prompts[1])
    assert prompts[3].split()[:3] == prompts[0].split()[:3] and prompts[3] != prompts[0]
    starts = [came for came, _ in server.bodies]
    assert starts[1] - starts[0] == pytest.approx(1.2) and starts[3] - starts[2] < 0.3
    assert report.points[0].latencies["e2e"]["max"] == pytest.approx(200)


def test_repetitions_give_intervals() -> None:
    draws = random.Random(2)
    script = lambda body, number, now: [draws.uniform(0.1, 0.3)]  # noqa: E731
    report, _ = measured(script, repeat=5, requests=50, output_tokens=1)
    (point,) = report.points
    low, high = point.intervals["e2e_p50"]
    assert point.requests == 250 and len(point.repetitions) == 5
    assert point.interval_method == "repetitions"
    assert low < point.latencies["e2e"]["p50"] < high and (high - low) < 80


def test_repetitions_take_turns() -> None:
    """A server that is slower in the second half is noise between repetitions, not a difference
    between points."""
    script = lambda body, number, now: [0.1 if number < 40 else 0.2]  # noqa: E731
    report, server = measured(script, repeat=2, rates=(1.0, 2.0), requests=20, output_tokens=1)
    for point in report.points:
        first, second = (row["e2e_p50"] for row in point.repetitions)
        assert (first, second) == (pytest.approx(100), pytest.approx(200))
        low, high = point.intervals["e2e_p50"]
        assert low < 100 and high > 200
    assert len(server.bodies) == 80


def test_concurrency_sweep_ends_where_throughput_does() -> None:
    free = [0.0] * 4  # four places, each for one request of 0.1 s

    def script(body: dict, number: int, now: float) -> list[float]:
        place = free.index(min(free))
        free[place] = max(free[place], now) + 0.1
        return [free[place] - now]

    report, _ = measured(script, sweep="concurrency", output_tokens=1)
    assert [p.value for p in report.points] == [1, 2, 4, 8]


def test_rate_sweep_covers_the_capacity() -> None:
    report, _ = measured(one_at_a_time(0.1), sweep="rate", output_tokens=1, requests=64)
    assert report.points[0].mode == "concurrency"
    rates = [p.value for p in report.points[1:]]
    assert rates[0] == pytest.approx(2, rel=0.01) and rates[-1] == pytest.approx(11, rel=0.01)


def test_thinking_holds_no_place() -> None:
    """Two conversations of two turns under a limit of one request: the second is sent while the
    first one thinks."""
    script = lambda body, number, now: [1.0]  # noqa: E731
    report, server = measured(
        script, rates=(20.0,), arrivals="constant", turns=2, think=5.0, requests=4,
        max_concurrency=1, output_tokens=1,
    )  # fmt: skip
    first = server.bodies[0][0]
    times = [came - first for came, _ in server.bodies]
    assert times == pytest.approx([0, 1, 6, 7], abs=0.01)
    assert report.points[0].latencies["e2e"]["max"] == pytest.approx(1900, abs=10)
