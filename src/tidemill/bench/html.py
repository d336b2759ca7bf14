"""Reports as one page: it holds its data, style and script, and asks no network for anything."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from tidemill.bench.compare import compare
from tidemill.bench.report import quality_lines, search_line
from tidemill.bench.results import BenchReport


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _report(report: BenchReport) -> dict[str, Any]:
    return asdict(report) | {
        "search_sentence": search_line(report) if report.search else "",
        "quality_sentences": quality_lines(report),
    }


def render_html(reports: Sequence[BenchReport]) -> str:
    """One page with all reports; each after the first is compared with the first.

    Reports need a point for the plots; those without one are left out.
    """
    shown = [report for report in reports if report.points]
    comparisons = [compare(shown[0], other) for other in shown[1:]]
    data = {
        "reports": [_report(report) for report in shown],
        "comparisons": [asdict(c) | {"sentence": c.sentence()} for c in comparisons],
    }
    page = files("tidemill.bench").joinpath("page")
    # "<" would let a text of the data end its element.
    text = json.dumps(_clean(data), separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "/*CSS*/": page.joinpath("report.css").read_text("utf-8"),
        "/*JS*/": page.joinpath("report.js").read_text("utf-8"),
        "/*DATA*/": text,
    }
    html = page.joinpath("report.html").read_text("utf-8")
    for mark, part in parts.items():
        html = html.replace(mark, part)
    return html
