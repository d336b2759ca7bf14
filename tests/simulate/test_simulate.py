"""Simulated servers: what their clients see is what the costs and the scheduler say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.simulated_costs import HOST, STEP, costs

from tidemill.base.errors import TidemillError
from tidemill.bench.compare import compare
from tidemill.bench.options import BenchOptions
from tidemill.bench.reading import read_report
from tidemill.bench.report import report_json
from tidemill.bench.results import BenchReport, PointReport
from tidemill.simulate.costs import Work, write_costs
from tidemill.simulate.run import FleetOptions, simulate

PLAIN = FleetOptions()


def simulated(
    fleet: FleetOptions = PLAIN, sizes: dict[str, Any] | None = None, **how: Any
) -> BenchReport:
    return simulate(BenchOptions("", **{"warmup": 0, **how}), costs(**(sizes or {})), fleet)


def point(*args: Any, **how: Any) -> PointReport:
    (found,) = simulated(*args, **how).points
    return found


QUIET = FleetOptions(noise=False)


def test_one_stream_takes_what_the_costs_say() -> None:
    found = point(QUIET, concurrency=(1,), requests=4, input_tokens=100, output_tokens=2)
    prompt = STEP.of(Work(100, 5050, 100, 1, 1))
    token = STEP.of(Work(1, 101, 101, 1, 1))
    loop = HOST.step + HOST.row
    received = HOST.request + 100 * HOST.prompt_token
    sent = 0.5 * loop + HOST.deliver + HOST.chunk
    # The first token leaves when the second step begins, the second at once.
    first = received + HOST.submit + loop + prompt + loop + HOST.deliver + HOST.chunk
    assert found.latencies["ttft"]["p50"] == pytest.approx(1000 * first, rel=1e-6)
    last = received + HOST.submit + 2 * loop + prompt + token + sent
    assert found.latencies["e2e"]["p50"] == pytest.approx(1000 * last, rel=1e-6)
    assert found.completed == 4 and found.output_tokens == 8


def test_equal_seeds_give_equal_figures_and_others_do_not() -> None:
    how = {"rates": (3.0,), "requests": 60, "input_tokens": "lognormal:200:0.8"}
    fleet = FleetOptions(engines=3)
    texts = []
    for seed in (1, 1, 2):
        report = json.loads(report_json(simulated(fleet, **how, seed=seed)))
        texts.append(json.dumps(report["points"]))
    assert texts[0] == texts[1] != texts[2]


def test_figures_depend_on_no_process() -> None:
    """Python's hashes differ from process to process, as everything else does between machines."""
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from test_simulate import FleetOptions, point;"
        "print(repr(point(FleetOptions(engines=3), rates=(6.0,), requests=40, shared_prefix=128,"
        " prefix_groups=3).latencies))"
    )
    here = Path(__file__).parent
    told = {
        subprocess.run(
            [sys.executable, "-c", code, str(here), str(here.parent)],
            env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(told) == 1 and "ttft" in told.pop()


def test_streams_share_steps() -> None:
    one, eight = simulated(QUIET, concurrency=(1, 8), requests=16, input_tokens=32).points
    assert 4 < eight.output_throughput / one.output_throughput < 8


def test_a_queue_grows_where_the_rate_is_too_high() -> None:
    low, high = simulated(rates=(1.0, 30.0), requests=200).points
    assert low.steady["verdict"] != "drifting" and high.steady["verdict"] == "drifting"
    assert high.latencies["ttft"]["p99"] > 20 * low.latencies["ttft"]["p99"]


def test_shared_prefixes_and_turns_are_found_in_the_cache() -> None:
    shared = point(concurrency=(2,), requests=12, shared_prefix=160)
    # All but those that were sent before the first was computed.
    assert 9 * 160 <= shared.cached_tokens <= 12 * 160
    assert point(concurrency=(2,), requests=12).cached_tokens == 0
    turns = point(concurrency=(2,), requests=8, turns=4, input_tokens=64, output_tokens=64)
    # Turns after the first begin with what was said: 128, 256 and 384 tokens of whole blocks.
    assert turns.cached_tokens >= 2 * (96 + 224 + 352)
    off = point(
        FleetOptions(sizes={"prefix_caching": False}), concurrency=(2,), requests=12,
        shared_prefix=160,
    )  # fmt: skip
    assert off.cached_tokens == 0


def test_a_small_cache_preempts_and_says_so() -> None:
    how = {"concurrency": (12,), "requests": 24, "input_tokens": 100, "output_tokens": 200}
    roomy, tight = (
        simulated(FleetOptions(sizes={"num_blocks": blocks}, admission=False), **how)
        for blocks in (2048, 40)
    )
    assert not any("preempt" in note for note in roomy.notes)
    assert any("preempt" in note for note in tight.notes)
    assert tight.points[0].completed == 24
    assert tight.points[0].output_throughput < 0.9 * roomy.points[0].output_throughput


def test_a_prompt_beyond_the_context_fails_alone() -> None:
    found = point(sizes={"max_model_len": 512}, concurrency=(1,), requests=2, input_tokens=600)
    assert found.errors == {"bad_request": 2} and found.completed == 0


def test_time_limits_end_requests() -> None:
    found = point(concurrency=(4,), requests=8, output_tokens=400, timeout=3.0)
    assert found.errors == {"timeout": 8} and found.seconds == pytest.approx(6.0, rel=0.05)
    found = point(rates=(2.0,), requests=20, output_tokens=400, max_seconds=4.0)
    assert set(found.errors) == {"end of the point's time"}


def test_an_overload_beyond_max_concurrency_waits_in_the_client() -> None:
    found = point(rates=(20.0,), requests=40, max_concurrency=2)
    sent = found.samples["sent"]
    assert found.completed == 40 and max(sent) > 3 * max(found.samples["start"])


def test_admission_refuses_what_its_queue_has_no_room_for() -> None:
    how = {"rates": (200.0,), "requests": 300, "output_tokens": 200}
    small = {"num_blocks": 64, "max_model_len": 512}
    found = simulated(sizes=small, **how)
    refused = found.points[0].errors["http 429"]
    assert 100 < refused < 300 and found.points[0].completed == 300 - refused
    assert any(f"refused {refused}" in note for note in found.notes)
    without = point(FleetOptions(admission=False), sizes=small, **how)
    assert not without.errors and without.latencies["ttft"]["p99"] > (
        2 * found.points[0].latencies["ttft"]["p99"]
    )


def test_more_engines_carry_more() -> None:
    one, four = (
        point(FleetOptions(engines=engines), rates=(16.0,), requests=200) for engines in (1, 4)
    )
    assert one.latencies["ttft"]["p99"] > 5 * four.latencies["ttft"]["p99"]


def test_a_policy_that_knows_prefixes_finds_more_of_them() -> None:
    how = {"rates": (3.0,), "requests": 120, "shared_prefix": 192, "prefix_groups": 6}
    by_prefix, blind = (
        point(FleetOptions(engines=4, policy=policy), **how)
        for policy in ("predicted", "round-robin")
    )
    assert by_prefix.cached_tokens > 1.1 * blind.cached_tokens


def test_a_goodput_search_of_twice_the_engines_finds_twice_the_rate() -> None:
    how = {"goodput": True, "objectives": {"ttft": 400.0}, "requests": 120}
    one, two = (simulated(FleetOptions(engines=engines, noise=False), **how) for engines in (1, 2))
    assert one.search is not None and two.search is not None
    assert 1.5 < two.search["rate"] / one.search["rate"] < 3


def test_steps_beyond_the_measured_are_told() -> None:
    report = simulated(
        sizes={"max_num_seqs": 512, "num_blocks": 20_000}, concurrency=(200,), requests=200,
        input_tokens=32,
    )  # fmt: skip
    assert any("Extrapolated" in note and "samples" in note for note in report.notes)
    assert not any("Extrapolated" in note for note in simulated(requests=2).notes)


def test_faster_steps() -> None:
    slow, fast = (
        point(FleetOptions(speed=speed, noise=False), concurrency=(4,), requests=8)
        for speed in (1.0, 4.0)
    )
    assert 3 < fast.output_throughput / slow.output_throughput < 4


@pytest.mark.parametrize(
    ("fleet", "param"),
    [
        (FleetOptions(engines=0), "engines"),
        (FleetOptions(policy="best"), "policy"),
        (FleetOptions(sizes={"num_blocks": 0}), "num_blocks"),
        (FleetOptions(sizes={"threads": 2}), "threads"),
        (FleetOptions(speed=0), "speed"),
        (FleetOptions(max_itl_ms=-1), "max_itl_ms"),
    ],
)
def test_options_that_make_no_sense(fleet: FleetOptions, param: str) -> None:
    with pytest.raises(TidemillError) as caught:
        simulated(fleet)
    assert caught.value.param == param


def test_the_command_writes_what_bench_compares(tmp_path: Path) -> None:
    write_costs(costs(), tmp_path / "costs.json")
    for name, more in (("a", ()), ("b", ("--speed", "2"))):
        subprocess.run(
            [
                sys.executable, "-m", "tidemill", "simulate", "--costs", tmp_path / "costs.json",
                "--concurrency", "4", "--requests", "40", "--json", tmp_path / f"{name}.json",
                "--html", tmp_path / "page.html", *more,
            ],
            check=True, capture_output=True,
        )  # fmt: skip
    found = compare(*(read_report(tmp_path / f"{name}.json") for name in "ab"))
    assert found.verdict == "faster" and "simulated" in (tmp_path / "page.html").read_text()


def test_a_model_without_costs_is_told_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", "simulate", "nothing"],
        env={"TIDEMILL_HOME": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "tidemill calibrate nothing" in done.stderr


def test_speculation_pays_as_far_as_drafts_come_true() -> None:
    how = {"concurrency": (2,), "requests": 12, "output_tokens": 120}

    def tokens_per_second(acceptance: float | None, draft_ms: float = 0.0) -> float:
        fleet = FleetOptions(noise=False, acceptance=acceptance, draft_ms=draft_ms)
        found = point(fleet, **how)
        assert found.output_tokens == 12 * 120  # the same tokens, however many come at once
        return found.output_throughput

    without, never = tokens_per_second(None), tokens_per_second(0.0)
    sometimes, often = tokens_per_second(0.5), tokens_per_second(0.9)
    assert without == pytest.approx(never, rel=0.05)  # the controller stops what does not pay
    assert 1.2 * without < sometimes < 0.8 * often
    assert sometimes > tokens_per_second(0.5, 1.0) and often > tokens_per_second(0.9, 1.0)
    # A drafter that is slower than the steps is left alone, once that is known.
    assert tokens_per_second(0.5, 20.0) > 0.7 * without


def test_equal_seeds_draft_alike() -> None:
    fleet = FleetOptions(engines=2, acceptance=0.7, draft_ms=0.5)
    how = {"rates": (4.0,), "requests": 30}
    found = [simulated(fleet, **how, seed=seed).points[0].latencies for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    with pytest.raises(TidemillError, match="acceptance is a share"):
        simulated(FleetOptions(acceptance=1.5))
