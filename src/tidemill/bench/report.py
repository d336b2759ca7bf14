"""From traces to percentiles, a table and JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tidemill.bench.options import BenchReport, PointReport, RequestTrace

if TYPE_CHECKING:
    from rich.table import Table

PERCENTILES = (50, 90, 95, 99)


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-th percentile of ascending values, with linear interpolation; NaN if empty."""
    if not ordered:
        return math.nan
    position = (len(ordered) - 1) * q / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _distribution(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    mean = sum(ordered) / len(ordered) if ordered else math.nan
    row = {"mean": mean, **{f"p{q}": percentile(ordered, q) for q in PERCENTILES}}
    row["max"] = ordered[-1] if ordered else math.nan
    return {name: value * 1000 for name, value in row.items()}


def summarize(mode: str, value: float, traces: list[RequestTrace]) -> PointReport:
    """Percentiles and throughput of one point. TPOT is (end - first) / (tokens - 1) per request;
    ITL is every gap between chunks of a stream."""
    good = [t for t in traces if t.error is None]
    first = min((t.start for t in traces), default=0.0)
    seconds = max((t.end for t in traces), default=0.0) - first
    output = sum(t.output_tokens for t in good)
    given = sum(t.input_tokens for t in good)
    streamed = [t for t in good if t.arrivals]
    latencies = {
        "ttft": _distribution([t.arrivals[0] - t.start for t in streamed]),
        "itl": _distribution(
            [b - a for t in streamed for a, b in zip(t.arrivals, t.arrivals[1:], strict=False)]
        ),
        "tpot": _distribution(
            [
                (t.arrivals[-1] - t.arrivals[0]) / (t.output_tokens - 1)
                for t in streamed
                if t.output_tokens > 1
            ]
        ),
        "e2e": _distribution([t.end - t.start for t in good]),
    }
    wall = seconds or math.nan
    details: dict[str, str] = {}
    for trace in traces:
        if trace.error is not None and trace.detail:
            details.setdefault(trace.error, trace.detail)
    return PointReport(
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
        latencies=latencies,
        errors=dict(Counter(t.error for t in traces if t.error is not None)),
        error_details=details,
    )


def report_json(report: BenchReport) -> str:
    """The whole report as JSON; values without a sample are null."""

    def clean(value: object) -> object:
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items()}
        if isinstance(value, list):
            return [clean(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(clean(asdict(report)), indent=2)


def render_table(report: BenchReport) -> Table:
    """A rich table, one row per point; latencies in milliseconds as p50 / p99."""
    from rich.table import Table
    from rich.text import Text

    title = (
        f"{report.model} at {report.base_url} ({report.endpoint}), "
        f"input {report.input_tokens}, output {report.output_tokens} tokens"
    )
    table = Table(title=Text(title), title_justify="left")
    open_loop = any(p.mode == "rate" for p in report.points)
    table.add_column("req/s sent" if open_loop else "streams", justify="right")
    for column in ("done", "output tok/s", "total tok/s", "req/s"):
        table.add_column(column, justify="right")
    for column in ("TTFT", "ITL", "TPOT", "E2E"):
        table.add_column(f"{column} ms\np50 / p99", justify="right")
    table.add_column("errors")
    for point in report.points:
        cells = [f"{point.value:g}", f"{point.completed}/{point.requests}"]
        cells += [
            f"{x:.1f}"
            for x in (point.output_throughput, point.total_throughput, point.request_throughput)
        ]
        for name in ("ttft", "itl", "tpot", "e2e"):
            row = point.latencies[name]
            cells.append(f"{row['p50']:.1f} / {row['p99']:.1f}")
        cells.append(", ".join(f"{n}x {e}" for e, n in point.errors.items()) or "-")
        table.add_row(*map(Text, cells))
    details = {kind: text for point in report.points for kind, text in point.error_details.items()}
    if details:
        # Plain text, so that rich does not interpret a server's message as markup.
        table.caption = Text("\n".join(f"{kind}: {text}" for kind, text in details.items()))
        table.caption_justify = "left"
    return table
