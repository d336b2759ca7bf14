"""Reports as a table, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING

from tidemill.bench.compare import Comparison
from tidemill.bench.results import BenchReport, PointReport
from tidemill.bench.summary import BUSY, metrics

if TYPE_CHECKING:
    from rich.table import Table

_BARS = "▁▂▃▄▅▆▇█"
_MODES = {
    "concurrency": "streams", "rate": "req/s sent", "ramp": "req/s, ramp to", "trace": "speed",
}  # fmt: skip


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """Values as bars of eight heights from 0 to the maximum, averaged to `width` of them."""
    if not values or max(values) <= 0:
        return ""
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges) if b > a]
    top = max(means)
    return "".join(_BARS[min(7, int(8 * mean / top))] for mean in means)


def report_json(report: BenchReport) -> str:
    """The whole report as JSON; values without a sample are null."""

    def clean(value: object) -> object:
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items()}
        if isinstance(value, list):
            return [clean(v) for v in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    document = clean(asdict(report))
    assert isinstance(document, dict)
    points = document["points"]
    document["points"] = []
    text = json.dumps(document, indent=2)
    # Samples have a row per request: a line each would be most of the file.
    rows = ",\n".join(f"    {json.dumps(point, separators=(',', ':'))}" for point in points)
    return text.replace('"points": []', f'"points": [\n{rows}\n  ]', 1) if points else text


def report_csv(report: BenchReport) -> str:
    """A row per point."""
    rows = [
        {
            "label": report.label, "mode": p.mode, "value": p.value, "requests": p.requests,
            "completed": p.completed, "seconds": p.seconds, "input_tokens": p.input_tokens,
            "output_tokens": p.output_tokens, "cached_tokens": p.cached_tokens,
            "attainment": p.attainment, **metrics(p),
        }
        for p in report.points
    ]  # fmt: skip
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _notes(report: BenchReport) -> list[str]:
    details = {kind: text for point in report.points for kind, text in point.error_details.items()}
    lines = [f"{kind}: {text}" for kind, text in details.items()]
    for point in report.points:
        verdict = point.steady.get("verdict")
        if verdict == "drifting":
            growth = point.steady.get("drift", 0.0)
            lines.append(
                f"{point.value:g}: not steady: latency changes by {growth:+.0%} within the point"
            )
        if point.client.saturated:
            lines.append(f"{point.value:g}: {client_line(point)}")
        lines += [
            f"{point.value:g}: {joules:.1f} J by {source}"
            + (f", {joules / point.output_tokens:.3f} J per output token"
               if point.output_tokens else "")
            for source, joules in point.energy.items()
        ]  # fmt: skip
        lines += [f"{point.value:g}: cost {name}: {x:.4f} USD" for name, x in point.cost.items()]
    if report.search is not None:
        lines.append(search_line(report))
    return [*lines, *quality_lines(report), *report.notes]


def quality_lines(report: BenchReport) -> list[str]:
    """What is known of the quality, as sentences."""
    lines, quality = [], report.quality or {}
    if found := quality.get("answers"):
        low, high = found["interval"]
        lines.append(
            f"quality: {found['accuracy']:.1%} of {found['count']} answers of {found['file']} "
            f"match ({found['match']}; 95 % interval {low:.1%} to {high:.1%})"
            + (f"; {found['failed']} requests failed" if found["failed"] else "")
        )
    if found := quality.get("perplexity"):
        lines.append(
            f"quality: perplexity {found['perplexity']:.3f} per token, "
            f"{found['bits_per_byte']:.4f} bits per byte, on {found['tokens']} tokens of "
            f"{found['file']}"
        )
    return lines


def client_line(point: PointReport) -> str:
    """Why a point is limited by the client."""
    client = point.client
    late = f"{client.lag.get('p99', 0.0):.1f} ms late (p99)"
    if client.cpu > BUSY:
        return f"the client was saturated: {client.cpu:.0%} of a core, {late}"
    return f"the client was held up on its machine: {late}, with {client.cpu:.0%} of a core"


def search_line(report: BenchReport) -> str:
    """The result of a goodput search as a sentence."""
    found = report.search
    assert found is not None
    wanted = ", ".join(f"{name} <= {most:g} ms" for name, most in report.objectives.items())
    if found["rate"] is None:
        return f"goodput: no rate tried meets {wanted} for {found['target']:.0%} of the requests"
    best = next((p for p in report.points if p.mode == "rate" and p.value == found["rate"]), None)
    unsteady = best is not None and best.steady.get("verdict") != "steady"
    above = f"; {found['above']:.3g} req/s fails" if found["above"] is not None else ""
    return (
        f"goodput: {found['rate']:.3g} req/s is the highest rate found at which "
        f"{found['target']:.0%} meet {wanted}{above}"
        + ("; it was not steady there: longer probes (--duration) may fail" if unsteady else "")
    )


def _rate(point: PointReport, name: str, width: int) -> str:
    value, low_high = getattr(point, name), point.intervals.get(name)
    if low_high is None or point.interval_method != "repetitions" or width < _WIDE:
        return f"{value:.1f}"
    return f"{value:.1f} ± {(low_high[1] - low_high[0]) / 2:.1f}"


def _latency(point: PointReport, name: str) -> str:
    row = point.latencies[name]
    if math.isnan(row["p50"]):
        return "-"
    return " / ".join(
        f"{value:.1f}" if value < 1000 else f"{value:.0f}" for value in (row["p50"], row["p99"])
    )


def _met(point: PointReport) -> str:
    return "-" if point.attainment is None else f"{point.attainment:.1%}"


_WIDE, _FULL = 100, 155
# Heading, width of the terminal from which it is shown, and a point's cell at a width.
_COLUMNS: tuple[tuple[str, int, Callable[[PointReport, int], str]], ...] = (
    ("done", 0, lambda p, _: f"{p.completed}/{p.requests}"),
    ("output\ntok/s", 0, lambda p, width: _rate(p, "output_throughput", width)),
    ("total\ntok/s", _FULL, lambda p, _: f"{p.total_throughput:.1f}"),
    ("req/s", 0, lambda p, width: _rate(p, "request_throughput", width)),
    ("TTFT ms\np50 / p99", 0, lambda p, _: _latency(p, "ttft")),
    ("ITL ms\np50 / p99", _WIDE, lambda p, _: _latency(p, "itl")),
    ("TPOT ms\np50 / p99", 115, lambda p, _: _latency(p, "tpot")),
    ("E2E ms\np50 / p99", 0, lambda p, _: _latency(p, "e2e")),
    ("met", 0, lambda p, _: _met(p)),
    ("tok/s\nover time", 125, lambda p, _: sparkline(p.series.get("output_tokens", ()))),
    ("errors", 0, lambda p, _: ", ".join(f"{n}x {e}" for e, n in p.errors.items()) or "-"),
)


def render_table(report: BenchReport, width: int = 160) -> Table:
    """A rich table, one row per point; latencies in milliseconds as p50 / p99.

    Args:
        width: of the terminal; a narrow one has fewer columns, so that no figure is cut.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title = (
        f"{report.model} at {report.base_url} ({report.endpoint}), "
        f"input {report.input_tokens}, output {report.output_tokens} tokens"
    )
    table = Table(title=Text(title), title_justify="left")
    if width < _FULL:
        table.box, table.pad_edge, table.padding = box.SIMPLE_HEAD, False, 0
    modes = {p.mode for p in report.points}
    table.add_column(_MODES[modes.pop()] if len(modes) == 1 else "streams or rate", justify="right")
    columns = [
        column
        for column in _COLUMNS
        if column[1] <= width and (column[0] != "met" or report.objectives)
    ]
    for name, _, _ in columns:
        is_text = name in ("errors", "tok/s\nover time")
        table.add_column(
            name,
            justify="left" if is_text else "right",
            no_wrap=name != "errors",
            overflow="crop" if is_text else "ellipsis",
        )
    for point in sorted(report.points, key=lambda p: (p.mode, p.value)):
        cells = [f"{point.value:.4g}", *(cell(point, width) for _, _, cell in columns)]
        table.add_row(*map(Text, cells))
    if notes := _notes(report):
        # Plain text, so that rich does not interpret a server's message as markup.
        table.caption = Text("\n".join(notes))
        table.caption_justify = "left"
    return table


def render_comparison(found: Comparison, width: int = 160) -> Table:
    """A rich table, one row per metric and point, for a terminal of this width."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"A = {found.a}, B = {found.b}"), title_justify="left")
    if width < _WIDE:
        table.box, table.pad_edge, table.padding = box.SIMPLE_HEAD, False, 0
    table.add_column("point")
    table.add_column("metric")
    for column in ("A", "B", "B / A", "interval"):
        table.add_column(column, justify="right")
    table.add_column("B is")
    styles = {"faster": "green", "better": "green", "slower": "red", "worse": "red"}
    for row in found.rows:
        point = f"{row.mode} {row.value:.4g}" if row.value else row.mode
        cells = [point, row.metric, f"{row.a:.4g}", f"{row.b:.4g}", f"{row.ratio:.3f}"]
        interval = row.interval
        cells.append("unknown" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}")
        table.add_row(*map(Text, cells), Text(row.verdict, style=styles.get(row.verdict, "")))
    if found.notes:
        table.caption = Text("\n".join(found.notes))
        table.caption_justify = "left"
    return table
