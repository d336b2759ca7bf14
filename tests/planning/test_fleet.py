"""A planned model as engines of a fleet, and the search by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def plan(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", "plan", "brook", *arguments],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


LOAD = ("--requests", "60", "--prompt", "200", "--output", "40", "--context", "1024")


def test_the_cheapest_of_several_devices_is_found() -> None:
    told = plan(
        "--rate", "20", *LOAD, "--objective", "ttft<1s,itl<50ms", "--device", "h100-sxm,l4",
        "--json",
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert found["schema"] == "tidemill.fleet/1"
    best = found["best"]
    assert best["device"] == "l4" and best["engines"] == 1 and best["attainment"] >= 0.99
    assert best["latencies"]["ttft"]["p99"] < 1000
    assert any("h100-sxm" in name and "costs as much" in why for name, why in found["out"].items())
    times = found["headroom"]
    assert times["with_one_more"] >= times["times_the_load"] >= 1
    assert any("described" in note for note in best["notes"])


def test_devices_together_are_quicker_and_cost_more() -> None:
    """One device's mean gap is beyond the objective, that of two together within it."""
    how = ("--rate", "5", *LOAD, "--device", "l4", "--json")
    alone = json.loads(plan(*how, "--objective", "itl<1s").stdout)["best"]
    gap = alone["latencies"]["tpot"]["p50"]
    asked = (*how, "--objective", f"itl<{0.8 * gap:.3f}ms", "--tensor-parallel", "1,2,4")
    best = json.loads(plan(*asked).stdout)["best"]
    assert best["devices_per_engine"] == 2 and best["device"].startswith("2 x l4")
    assert best["usd_per_hour"] == 2 * alone["usd_per_hour"] and best["engines"] == 1
    assert best["latencies"]["tpot"]["p50"] == pytest.approx(gap / 1.6, rel=0.15)
    assert any("efficiency of 80%" in note for note in best["notes"])
    # At an efficiency of a half two are as quick as one.
    best = json.loads(plan(*asked, "--efficiency", "0.5").stdout)["best"]
    assert best["devices_per_engine"] == 4


def test_a_recorded_trace_is_planned_for(tmp_path: Path) -> None:
    rows = [{"timestamp": i / 20, "input": 200, "output": 40} for i in range(60)]
    (path := tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = plan("--trace", str(path), "--objective", "ttft<1s", "--device", "l4").stdout
    assert "1 engine(s) of l4 serve the load" in told.replace("\n", " ")


def test_nothing_that_serves_exits_with_1() -> None:
    told = plan("--rate", "5", *LOAD, "--objective", "ttft<0.01ms", "--device", "l4", code=1)
    assert "No candidate serves the load" in told.stdout and "alone" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "5", "--device", "l4"), "objective"),
        (("--rate", "5", "--objective", "ttft<1s", "--device", "epyc"), "not known"),
        (
            ("--rate", "5", "--objective", "ttft<1s", "--device", "l4", "--trace", "x.jsonl"),
            "exclude each other",
        ),
        (("--rate", "5", "--objective", "ttft<1s", "--tensor-parallel", "2"), "--device"),
        (
            ("--rate", "5", "--objective", "ttft<1s", "--device", "l4", "--tensor-parallel", "0"),
            "1 to 64",
        ),
        (
            ("--rate", "5", "--objective", "ttft<1s", "--device", "l4", "--efficiency", "2"),
            "share",
        ),
        (("--rate", "0", "--objective", "ttft<1s", "--device", "l4"), "above 0"),
        (("--rate", "5", "--objective", "ttft<1s", "--device", "l4", "--target", "2"), "target"),
    ],
)
def test_what_makes_no_sense(arguments: tuple[str, ...], said: str) -> None:
    assert said in plan(*arguments, code=2).stderr
