"""Numbers of a comparison in words, and tables of them for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.server.host.rollout.comparison import MetricView
from tidemill.server.host.rollout.observation import METRICS


def metrics_table(metrics: Sequence[MetricView]) -> list[str]:
    """Lines of a table: one row per metric."""
    heading = ["metric", "baseline", "variant", "effect", "limit", "verdict"]
    rows = [
        [
            view.metric,
            value_text(view.metric, view.baseline),
            value_text(view.metric, view.variant),
            effect_text(view),
            limit_text(view),
            str(view.verdict),
        ]
        for view in metrics
    ]
    return table_lines([heading, *rows])


def effect_text(view: MetricView) -> str:
    """An effect with its interval, as ``+12 % (+3 to +22)``."""
    if view.effect is None:
        return "-"
    unit = "%" if view.relative else "points"
    estimate = f"{_percent(view.effect, view.relative)} {unit}"
    low, high = (e if e is None else _percent(e, view.relative) for e in (view.low, view.high))
    match low, high:
        case None, None:
            return f"{estimate} (uncertain)"
        case _, None:
            return f"{estimate} (above {low})"
        case None, _:
            return f"{estimate} (below {high})"
        case _:
            return f"{estimate} ({low} to {high})"


def limit_text(view: MetricView) -> str:
    """The limits of a metric, as ``-20 to +30 %``."""
    unit = "%" if view.relative else "points"
    ends = [e for e in (view.limit_low, view.limit_high) if e is not None]
    return " to ".join(_percent(e, view.relative) for e in ends) + f" {unit}" if ends else "-"


def beyond_text(view: MetricView) -> str:
    """Why a metric rolls back, with the effect and its interval."""
    return f"{view.metric} is worse: {effect_text(view)}, limit {limit_text(view)}"


def value_text(metric: str, value: float | None) -> str:
    """A typical value with its unit."""
    if value is None:
        return "-"
    unit = METRICS[metric].unit
    if unit == "s":
        return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.3g} ms"
    if unit == "tokens":
        return f"{value:.0f}"
    return f"{100 * value:.2f} %"


def _percent(value: float, relative: bool) -> str:
    return f"{100 * value:+.0f}" if relative else f"{100 * value:+.2f}"


def duration_text(seconds: float) -> str:
    """A duration in its largest fitting unit."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; the first row is the heading."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
