"""From traces to the figures of a point."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from tidemill.bench.results import ClientUse, PointReport, RequestTrace
from tidemill.bench.stats import block_errors, mean_interval, percentile, t_quantile
from tidemill.bench.steady import steady_state

PERCENTILES = (50, 90, 95, 99)
_BOUNDED = (50, 90, 99)  # those with intervals
LATENCIES = ("ttft", "itl", "tpot", "e2e")
# A client this busy, or this late (in ms, and as a share of the median TTFT), limits what it sees.
BUSY, _LATE, _LATE_SHARE = 0.9, 5.0, 0.1


def _distribution(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    mean = sum(ordered) / len(ordered) if ordered else math.nan
    row = {"mean": mean, **{f"p{q}": percentile(ordered, q) for q in PERCENTILES}}
    row["max"] = ordered[-1] if ordered else math.nan
    return {name: value * 1000 for name, value in row.items()}


def gaps(traces: Sequence[RequestTrace]) -> list[float]:
    """Seconds between chunks, of all streams."""
    return [b - a for t in traces for a, b in pairwise(t.arrivals)]


def latencies(traces: Sequence[RequestTrace]) -> dict[str, dict[str, float]]:
    """Milliseconds by latency; ITL is every gap between chunks of a stream."""
    found = [t.latencies() for t in traces]
    rows: dict[str, Sequence[float]] = {
        name: [row[name] for row in found if name in row] for name in ("ttft", "tpot", "e2e")
    }
    rows["itl"] = gaps([t for t in traces if t.error is None])
    return {name: _distribution(rows[name]) for name in LATENCIES}


def meets(trace: RequestTrace, objectives: Mapping[str, float]) -> bool:
    """Whether a request met every objective (milliseconds); ``itl`` bounds its longest gap. An
    error meets none; a latency that does not exist, such as the TPOT of one token, meets all."""
    if trace.error is not None:
        return False
    found = trace.latencies()
    found["itl"] = max(gaps([trace]), default=0.0)
    return all(1000 * found.get(name, 0.0) <= most for name, most in objectives.items())


def _samples(traces: Sequence[RequestTrace], repetition: int) -> list[dict[str, Any]]:
    rows = []
    for trace in sorted(traces, key=lambda t: t.start):
        found = {name: round(1000 * value, 3) for name, value in trace.latencies().items()}
        rows.append({
            "repetition": repetition,
            "start": round(trace.start, 4),
            "sent": round(trace.sent, 4),
            "end": round(trace.end, 4),
            **{name: found.get(name) for name in ("ttft", "tpot", "e2e")},
            "input_tokens": trace.input_tokens,
            "output_tokens": trace.output_tokens,
            "cached_tokens": trace.cached_tokens,
            "error": trace.error,
        })  # fmt: skip
    return rows


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def series(traces: Sequence[RequestTrace]) -> dict[str, Any]:
    """Counts per step: tokens that arrived, requests that ended, and requests in flight. The step
    is a whole number of tenths of a second that makes at most 240 of them."""
    end = max((t.end for t in traces), default=0.0)
    step = max(0.1, math.ceil(end / 240 * 10) / 10)
    count = int(end / step) + 1
    tokens, completed, active = [0.0] * count, [0] * count, [0] * count
    for trace in traces:
        share = trace.output_tokens / len(trace.arrivals) if trace.arrivals else 0.0
        for when in trace.arrivals:
            tokens[min(count - 1, int(when / step))] += share
        last = min(count - 1, int(trace.end / step))
        completed[last] += trace.error is None
        for i in range(int(trace.sent / step), last + 1):
            active[i] += 1
    return {
        "step": step,
        "output_tokens": [round(t, 2) for t in tokens],
        "completed": completed,
        "active": active,
    }


def _quantiles(values: Sequence[float]) -> list[float | None]:
    """0 % to 100 % in steps of one, in milliseconds."""
    ordered = sorted(values)
    return [round(1000 * percentile(ordered, q), 3) for q in range(101)] if ordered else []


def _saturated(client: ClientUse, found: Mapping[str, Mapping[str, float]]) -> bool:
    late = client.lag.get("p99", 0.0)
    first = found["ttft"]["p50"]
    bound = max(_LATE, _LATE_SHARE * first if math.isfinite(first) else 0.0)
    return client.cpu > BUSY or late > bound


def metrics(point: PointReport) -> dict[str, float]:
    """The figures of a point that are compared, by a flat name; those that exist."""
    found: dict[str, float | None] = {
        "output_throughput": point.output_throughput,
        "request_throughput": point.request_throughput,
        "goodput": point.goodput,
    }
    for name in LATENCIES:
        row = point.latencies.get(name, {})
        found |= {f"{name}_{which}": row.get(which) for which in ("mean", "p50", "p90", "p99")}
    return {k: v for k, v in found.items() if v is not None and math.isfinite(v)}


def _block_intervals(point: PointReport, level: float = 0.95) -> dict[str, list[float]]:
    """Intervals from one repetition: of latencies over requests in the order of their start."""
    z = t_quantile((1 + level) / 2, math.inf)
    found = {}
    for name in ("ttft", "tpot", "e2e"):
        rows = [value for value in point.samples.get(name, ()) if value is not None]
        errors = block_errors(rows, lambda values: [percentile(values, q) for q in _BOUNDED])
        for q, error in zip(_BOUNDED, errors, strict=False):
            value = point.latencies[name][f"p{q}"]
            if math.isfinite(value):
                found[f"{name}_p{q}"] = [value * math.exp(-z * error), value * math.exp(z * error)]
    return found


def summarize(
    mode: str,
    value: float,
    traces: Sequence[RequestTrace],
    objectives: Mapping[str, float] | None = None,
    client: ClientUse | None = None,
    steady: dict[str, Any] | None = None,
    repetition: int = 0,
) -> PointReport:
    """Percentiles and throughput of one measurement of a point. TPOT is (end - first) /
    (tokens - 1) per request; ITL is every gap between chunks of a stream.

    Args:
        objectives: milliseconds by latency.
        client: what the client did.
        steady: what is known of the whole measurement, where `traces` are a part of it.
    """
    first = min((t.start for t in traces), default=0.0)
    good = [t for t in traces if t.error is None]
    seconds = max((t.end for t in traces), default=0.0) - first
    wall = seconds or math.nan
    output = sum(t.output_tokens for t in good)
    given = sum(t.input_tokens for t in good)
    details: dict[str, str] = {}
    for trace in traces:
        if trace.error is not None and trace.detail:
            details.setdefault(trace.error, trace.detail)
    point = PointReport(
        mode=mode,
        value=value,
        requests=len(traces),
        completed=len(good),
        seconds=seconds,
        output_tokens=output,
        input_tokens=given,
        cached_tokens=sum(t.cached_tokens for t in good),
        output_throughput=output / wall,
        total_throughput=(output + given) / wall,
        request_throughput=len(good) / wall,
        latencies=latencies(traces),
        errors=dict(Counter(t.error for t in traces if t.error is not None)),
        error_details=details,
        steady=steady_state(traces, mode == "concurrency") if steady is None else steady,
        client=client or ClientUse(),
        samples=_columns(_samples(traces, repetition)),
        series=series(traces) | {"itl_quantiles": _quantiles(gaps(good))},
    )
    if objectives:
        met = sum(meets(t, objectives) for t in traces)
        point.attainment = met / max(1, len(traces))
        point.goodput = met / wall
    point.client.saturated = _saturated(point.client, point.latencies)
    return point


def with_intervals(point: PointReport) -> PointReport:
    """Add the intervals that one measurement gives."""
    point.intervals, point.interval_method = _block_intervals(point), "blocks"
    return point


_SUMS = ("requests", "completed", "seconds", "output_tokens", "input_tokens", "cached_tokens")


def merge(points: Sequence[PointReport], traces: Sequence[Sequence[RequestTrace]]) -> PointReport:
    """Repetitions of one point as one: percentiles of all requests, and confidence intervals
    of the repetitions' figures."""
    if len(points) == 1:
        return with_intervals(points[0])
    whole = points[0]
    total = {name: sum(getattr(p, name) for p in points) for name in _SUMS}
    wall = total["seconds"] or math.nan
    rows = [metrics(p) for p in points]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    errors: Counter[str] = Counter()
    for point in points:
        errors.update(point.errors)
    worst = max(points, key=lambda p: p.client.lag.get("p99", 0.0) + 1e3 * p.client.saturated)
    return PointReport(
        mode=whole.mode,
        value=whole.value,
        **total,
        output_throughput=total["output_tokens"] / wall,
        total_throughput=(total["output_tokens"] + total["input_tokens"]) / wall,
        request_throughput=total["completed"] / wall,
        latencies=latencies([t for part in traces for t in part]),
        errors=dict(errors),
        error_details={k: v for p in points for k, v in p.error_details.items()},
        attainment=None if whole.attainment is None else fmean(p.attainment or 0 for p in points),
        goodput=None if whole.goodput is None else fmean(p.goodput or 0.0 for p in points),
        steady=next((p.steady for p in points if p.steady["verdict"] != "steady"), whole.steady),
        intervals={name: mean_interval([row[name] for row in rows]) for name in names},
        interval_method="repetitions",
        repetitions=rows,
        client=worst.client,
        energy={name: sum(p.energy.get(name, 0.0) for p in points) for name in whole.energy},
        samples={
            name: [v for p in points for v in p.samples.get(name, ())] for name in whole.samples
        },
        series=whole.series,
    )
