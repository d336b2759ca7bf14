"""Reports from files: Tidemill's own, and those of `vllm bench serve` and guidellm."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from tidemill.base.errors import config_error
from tidemill.bench.results import SCHEMA, BenchReport, PointReport, RequestTrace
from tidemill.bench.summary import LATENCIES, PERCENTILES, summarize, with_intervals

_VLLM_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
_GUIDE_RATES = ("constant", "poisson", "async")


def read_report(path: Path) -> BenchReport:
    """The report in a JSON file.

    Raises:
        TidemillError: CONFIG where the file cannot be read, or is of no known tool.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise config_error("file", f"cannot read {path}: {error}") from error
    read = next((r for is_one, r in _FORMATS if isinstance(data, dict) and is_one(data)), None)
    if read is None:
        raise config_error(
            "file",
            f"{path} is no report of tidemill bench, of vllm bench serve (--save-result) or of "
            "guidellm (--output kind=json)",
        )
    try:
        report = read(data)
    except (KeyError, TypeError, ValueError, IndexError, msgspec.ValidationError) as error:
        raise config_error("file", f"{path} cannot be read as a report: {error!r}") from error
    report.label = report.label or path.stem
    return report


def _own(data: dict[str, Any]) -> BenchReport:
    if data.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"its schema is {data['schema']!r}; this version reads {SCHEMA!r}")
    for point in data["points"]:
        for row in point["latencies"].values():
            row.update({name: math.nan for name, value in row.items() if value is None})
        for name in ("output_throughput", "total_throughput", "request_throughput"):
            point[name] = math.nan if point[name] is None else point[name]
    return msgspec.convert(data, BenchReport)


def _vllm_mode(data: Mapping[str, Any]) -> tuple[str, float]:
    rate = float(data.get("request_rate") or "inf")
    if math.isfinite(rate):
        return "rate", rate
    return "concurrency", float(data.get("max_concurrency") or data["num_prompts"])


def _vllm_traces(data: Mapping[str, Any]) -> list[RequestTrace]:
    """From ``--save-detailed``; times of sending are missing in older versions."""
    firsts = data.get("ttfts") or []
    starts = data.get("start_times") or [0.0] * len(firsts)
    zero = min(starts, default=0.0)
    errors = data.get("errors") or [""] * len(firsts)
    lengths = zip(data["input_lens"], data["output_lens"], strict=True) if firsts else ()
    traces = []
    for number, (given, wanted) in enumerate(lengths):
        start = starts[number] - zero
        arrivals = list(accumulate([start + firsts[number], *data["itls"][number]]))
        traces.append(
            RequestTrace(
                start, start, arrivals, arrivals[-1], given, wanted, finish_reason="length",
                error=errors[number] or None,
            )
        )  # fmt: skip
    return traces


def _vllm(data: dict[str, Any]) -> BenchReport:
    mode, value = _vllm_mode(data)
    point = summarize(mode, value, _vllm_traces(data))
    for name, theirs in _VLLM_NAMES.items():
        row = {"mean": f"mean_{theirs}_ms", "p50": f"median_{theirs}_ms"}
        row |= {f"p{q}": f"p{q}_{theirs}_ms" for q in PERCENTILES[1:]}
        found = {which: data[key] for which, key in row.items() if data.get(key) is not None}
        point.latencies[name] |= {which: float(v) for which, v in found.items()}
    point.completed = int(data["completed"])
    point.requests = int(data.get("num_prompts", point.completed))
    point.seconds = float(data["duration"])
    point.input_tokens = int(data["total_input_tokens"])
    point.output_tokens = int(data["total_output_tokens"])
    point.output_throughput = float(data["output_throughput"])
    point.request_throughput = float(data["request_throughput"])
    point.total_throughput = (point.input_tokens + point.output_tokens) / point.seconds
    notes = ["Read from vLLM: latencies count from when its client sent."]
    if mode == "rate" and data.get("max_concurrency"):
        notes.append("Its --max-concurrency held requests back: that wait is in no latency here.")
    backend = str(data.get("endpoint_type") or data.get("backend") or "")
    return BenchReport(
        "", str(data["model_id"]), backend, "", "", [with_intervals(point)],
        label=str(data.get("label") or ""), created=str(data.get("date") or ""), tool="vllm bench",
        notes=notes,
    )  # fmt: skip


def _guide_trace(
    row: Mapping[str, Any], zero: float, paced: bool, error: str | None
) -> RequestTrace:
    times = row["info"]["timings"]
    begun = times.get("request_start") or times.get("resolve_start") or zero
    start = (times.get("targeted_start") or begun) if paced else begun
    last = times.get("last_token_iteration")
    first = times.get("first_token_iteration")
    return RequestTrace(
        start - zero,
        begun - zero,
        [first - zero, last - zero] if first and last else [],
        (times.get("request_end") or last or begun) - zero,
        row.get("prompt_tokens") or 0,
        row.get("output_tokens") or 0,
        row.get("cached_tokens") or 0,
        "length",
        error,
    )


def _guide_point(benchmark: Mapping[str, Any]) -> PointReport:
    strategy = benchmark["config"]["strategy"]
    kind = strategy["type_"]
    paced = kind in _GUIDE_RATES
    zero = benchmark["start_time"]
    traces = [
        _guide_trace(row, zero, paced, error)
        for status, error in (("successful", None), ("errored", "error"))
        for row in benchmark["requests"].get(status) or ()
    ]
    value = strategy.get("rate") if paced else strategy.get("streams")
    value = value or (1.0 if kind == "synchronous" else strategy.get("max_concurrency") or 0.0)
    point = summarize("rate" if paced else "concurrency", float(value), traces)
    row = benchmark["metrics"]["inter_token_latency_ms"]["successful"]
    if row and row.get("count"):
        shares = row["percentiles"]
        point.latencies["itl"] = {
            "mean": row["mean"], "max": row["max"],
            **{f"p{q}": shares[f"p{q}"] for q in PERCENTILES},
        }  # fmt: skip
    return with_intervals(point)


def _guide(data: dict[str, Any]) -> BenchReport:
    spec = data.get("config", {}).get("spec", {})
    backend = spec.get("backend") or {}
    return BenchReport(
        str(backend.get("target") or ""), str(backend.get("model") or ""),
        str(backend.get("request_format") or ""), "", "",
        [_guide_point(benchmark) for benchmark in data["benchmarks"]],
        tool=f"guidellm {data['metadata'].get('guidellm_version', '')}",
        notes=["Read from guidellm: ITL is a mean per request; TPOT is (last - first) / (n - 1)."],
    )  # fmt: skip


_FORMATS: tuple[
    tuple[Callable[[dict[str, Any]], bool], Callable[[dict[str, Any]], BenchReport]], ...
]
_FORMATS = (
    (lambda data: "points" in data and "endpoint" in data, _own),
    (lambda data: "total_output_tokens" in data and "request_throughput" in data, _vllm),
    (lambda data: "benchmarks" in data and "metadata" in data, _guide),
)
assert set(_VLLM_NAMES) == set(LATENCIES)
