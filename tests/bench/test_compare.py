"""Two runs compared: real differences are shown, noise is not; other tools' files are read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tidemill.base.errors import TidemillError
from tidemill.bench.compare import FASTER, NOT_SHOWN, SLOWER, compare
from tidemill.bench.reading import read_report
from tidemill.bench.report import report_csv, report_json
from tidemill.bench.results import BenchReport, RequestTrace
from tidemill.bench.stats import block_error, mean_interval, t_quantile, wilson
from tidemill.bench.summary import merge, summarize


def a_run(
    seed: int, seconds: float, repeat: int = 1, between: float = 0.0, count: int = 100
) -> BenchReport:
    """One stream whose requests take `seconds` on average; repetitions differ by `between`."""
    rng = random.Random(seed)
    points, traces = [], []
    for repetition in range(repeat):
        mean, now, rows = seconds * rng.lognormvariate(0, between), 0.0, []
        for _ in range(count):
            taken = mean * rng.uniform(0.8, 1.2)
            arrivals = [now + taken * share for share in (0.2, 0.6, 1.0)]
            rows.append(RequestTrace(now, now, arrivals, now + taken, 10, 3, 0, "length"))
            now += taken
        points.append(summarize("concurrency", 1, rows, repetition=repetition))
        traces.append(rows)
    report = BenchReport("http://x", "m", "chat", "10", "3", [merge(points, traces)])
    report.label = f"run{seed}"
    return report


@pytest.mark.parametrize(("seconds", "verdict"), [(0.8, FASTER), (1.25, SLOWER)])
@pytest.mark.parametrize("repeat", [1, 4])
def test_a_difference_is_shown(seconds: float, verdict: str, repeat: int) -> None:
    found = compare(a_run(1, 1.0, repeat, 0.01), a_run(2, seconds, repeat, 0.01))
    assert found.verdict == verdict
    assert found.interval is not None and found.repeated is (repeat > 1)
    assert found.interval[0] < 1 / seconds < found.interval[1]
    assert {r.verdict for r in found.rows if r.metric == "e2e_p50"} == {verdict}
    assert f"run2 is {verdict} than run1" in found.sentence()


def test_noise_between_repetitions_is_not_a_difference() -> None:
    """Runs of one kind whose repetitions vary by 10 %: about one in 20 may be called different."""
    verdicts = [
        compare(a_run(2 * i, 1.0, 4, 0.1, 25), a_run(2 * i + 1, 1.0, 4, 0.1, 25)) for i in range(40)
    ]
    wrong = [c for c in verdicts if c.verdict != NOT_SHOWN]
    assert len(wrong) <= 5
    # All rows of a comparison hold together, so that hardly any is wrong.
    assert sum(r.verdict != NOT_SHOWN for c in verdicts for r in c.rows) <= 8


def test_few_requests_show_nothing() -> None:
    found = compare(a_run(1, 1.0, count=6), a_run(2, 0.5, count=6))
    assert found.verdict == NOT_SHOWN and found.interval is None
    assert any("--repeat" in note for note in found.notes)


def test_cached_prompts_are_pointed_at() -> None:
    first, second = a_run(1, 1.0), a_run(2, 0.5)
    second.points[0].cached_tokens = second.points[0].input_tokens
    assert any("--seed" in note for note in compare(first, second).notes)


def test_points_that_differ_are_not_compared() -> None:
    first, second = a_run(1, 1.0), a_run(2, 0.5)
    second.points[0].value = 2
    assert compare(first, second).rows == []
    assert "no point in common" in compare(first, second).sentence()


def test_paired_quality() -> None:
    first, second = a_run(1, 1.0), a_run(2, 1.0)
    good, bad = [1] * 40, [1] * 20 + [0] * 20
    for report, outcomes in ((first, good), (second, bad)):
        accuracy = sum(outcomes) / 40
        report.quality = {"answers": {"file": "f", "accuracy": accuracy, "outcomes": outcomes}}
    (row,) = (r for r in compare(first, second).rows if r.mode == "quality")
    assert row.verdict == "worse" and row.ratio == 0.5


def test_goodput_searches_are_compared_by_their_brackets() -> None:
    first, second = a_run(1, 1.0), a_run(2, 0.5)
    for report, rate, above in ((first, 10.0, 10.5), (second, 8.0, 8.4)):
        report.objectives = {"e2e": 100.0}
        report.search = {"target": 0.99, "rate": rate, "above": above, "probes": []}
    found = compare(first, second)
    assert found.verdict == SLOWER and found.rows[0].mode == "search"
    assert found.speedup == 0.8 and found.interval == pytest.approx((8 / 10.5, 0.84))
    second.search["above"] = 10.2  # type: ignore[index]
    assert compare(first, second).verdict == NOT_SHOWN
    second.objectives = {"e2e": 50.0}
    assert compare(first, second).rows[0].mode == "concurrency"


def test_own_json_is_read_as_it_was(tmp_path: Path) -> None:
    report = a_run(1, 1.0, 3, 0.1)
    (path := tmp_path / "a.json").write_text(report_json(report))
    again = read_report(path)
    assert again == report
    assert json.loads(path.read_text())["schema"] == "tidemill.bench/1"
    lines = report_csv(again).splitlines()
    assert len(lines) == 2 and lines[0].startswith("label,mode,value,")


VLLM = {
    "date": "20261126-120000", "endpoint_type": "openai", "backend": "openai", "label": None,
    "model_id": "some/model", "tokenizer_id": "some/model", "num_prompts": 2,
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 2, "duration": 2.0,
    "completed": 2, "total_input_tokens": 30, "total_output_tokens": 6, "request_throughput": 1.0,
    "output_throughput": 3.0, "total_token_throughput": 18.0, "mean_ttft_ms": 150.0,
    "median_ttft_ms": 150.0, "std_ttft_ms": 50.0, "p99_ttft_ms": 199.0, "mean_tpot_ms": 100.0,
    "median_tpot_ms": 100.0, "p99_tpot_ms": 100.0, "mean_itl_ms": 100.0, "median_itl_ms": 100.0,
    "p99_itl_ms": 100.0,
}  # fmt: skip
VLLM_DETAILS = {
    "input_lens": [10, 20], "output_lens": [3, 3], "ttfts": [0.1, 0.2],
    "itls": [[0.1, 0.1], [0.1, 0.1]], "start_times": [50.0, 51.0], "generated_texts": ["", ""],
    "errors": ["", ""],
}  # fmt: skip


@pytest.mark.parametrize("details", [{}, VLLM_DETAILS])
def test_vllms_json(tmp_path: Path, details: dict[str, Any]) -> None:
    (path := tmp_path / "vllm-run.json").write_text(json.dumps(VLLM | details))
    report = read_report(path)
    (point,) = report.points
    assert (report.label, report.model) == ("vllm-run", "some/model")
    assert (point.mode, point.value, point.completed) == ("concurrency", 2, 2)
    assert (point.output_throughput, point.total_throughput) == (3.0, 18.0)
    assert point.latencies["ttft"]["p50"] == 150 and point.latencies["ttft"]["p99"] == 199
    if details:
        assert point.samples["e2e"] == [pytest.approx(300), pytest.approx(400)]
        assert point.samples["start"] == [0.0, 1.0]
    path.write_text(json.dumps(VLLM | {"request_rate": 4.0}))
    paced = read_report(path)
    assert (paced.points[0].mode, paced.points[0].value) == ("rate", 4)
    # Requests that its client held back are missing from its latencies, and that is said.
    assert any("max-concurrency" in note for note in compare(paced, paced).notes)


def _guide_row(start: float, targeted: float) -> dict[str, Any]:
    times = {
        "targeted_start": targeted, "request_start": start, "first_token_iteration": start + 0.5,
        "last_token_iteration": start + 0.7, "request_end": start + 0.75,
    }  # fmt: skip
    return {"info": {"timings": times}, "prompt_tokens": 9, "output_tokens": 3}


@pytest.mark.parametrize(
    ("strategy", "mode", "value", "ttft"),
    [
        ({"type_": "concurrent", "streams": 8}, "concurrency", 8, 500),
        ({"type_": "constant", "rate": 2.5}, "rate", 2.5, 700),  # from the intended send time
        ({"type_": "synchronous"}, "concurrency", 1, 500),
    ],
)
def test_guidellms_json(
    tmp_path: Path, strategy: dict, mode: str, value: float, ttft: float
) -> None:
    shares = {"p50": 100.0, "p90": 101.0, "p95": 102.0, "p99": 103.0}
    gaps = {"count": 2, "mean": 100.0, "max": 104.0, "percentiles": shares}
    benchmark = {
        "config": {"strategy": strategy}, "start_time": 1000.0,
        "requests": {"successful": [_guide_row(1000.2, 1000.0)], "errored": [], "total": None},
        "metrics": {"inter_token_latency_ms": {"successful": gaps}},
    }  # fmt: skip
    backend = {"target": "http://x", "model": "m", "request_format": "/v1/completions"}
    document = {
        "metadata": {"guidellm_version": "0.8.1"}, "config": {"spec": {"backend": backend}},
        "benchmarks": [benchmark],
    }  # fmt: skip
    (path := tmp_path / "guide.json").write_text(json.dumps(document))
    (point,) = read_report(path).points
    assert (point.mode, point.value) == (mode, value)
    assert point.latencies["ttft"]["p50"] == pytest.approx(ttft)
    assert point.latencies["tpot"]["p50"] == pytest.approx(100)
    assert point.latencies["itl"]["p99"] == 103


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "tidemill.bench/9", "points": []}'])
def test_other_files_are_named(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "other.json").write_text(text)
    with pytest.raises(TidemillError, match=r"other\.json"):
        read_report(path)


def test_statistics_are_those_of_the_tables() -> None:
    for p, freedom, value in ((0.975, 1, 12.706), (0.975, 4, 2.776), (0.995, 10, 3.169)):
        assert t_quantile(p, freedom) == pytest.approx(value, abs=1e-3)
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx([-0.484, 4.484], abs=1e-3)
    assert wilson(99, 100) == pytest.approx([0.9455, 0.9982], abs=1e-3)
    rng = random.Random(1)
    rows = [rng.uniform(0.5, 1.5) for _ in range(400)]
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    # The standard error of such a mean is 0.2887 / sqrt(400).
    assert block_error(rows, mean) == pytest.approx(0.0144, rel=0.25)
