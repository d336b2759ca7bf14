"""Two runs compared: faster, slower, or not shown, with the interval that says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance

from tidemill.bench.results import BenchReport, PointReport
from tidemill.bench.stats import block_error, block_length, mean_interval, percentile, t_quantile
from tidemill.bench.summary import metrics

# Metric -> whether more is better. The first that a mode names below is its headline.
BETTER = {
    "output_throughput": True, "request_throughput": True, "goodput": True,
    "ttft_p50": False, "ttft_p99": False, "tpot_p50": False, "tpot_p99": False,
    "itl_p99": False, "e2e_mean": False, "e2e_p50": False, "e2e_p99": False,
}  # fmt: skip
# A closed loop is judged by what it gets done; where the load is given, by how long that takes.
_HEADLINES = {"concurrency": "output_throughput"}
_OTHER_HEADLINE = "e2e_mean"
_FROM_ARRIVALS = ("output_throughput", "request_throughput")  # open loops: set by the load
_FEWEST = 20  # completed requests below which one run says nothing about its noise
_SMALLEST = 1e-4  # standard error of a logarithm below which clocks are not trusted

FASTER, SLOWER, NOT_SHOWN = "faster", "slower", "not shown"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one point in both runs.

    Attributes:
        ratio: B / A.
        interval: of the ratio; None where nothing is known of the noise.
        verdict: on B: ``faster``, ``slower`` or ``not shown``.
    """

    mode: str
    value: float
    metric: str
    a: float
    b: float
    ratio: float
    interval: tuple[float, float] | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it.

    Attributes:
        verdict: of the headline: of the mean of its ratios over all points that both runs have, or
            of the rates that two goodput searches found.
        speedup: that mean, so that above 1 is better for B; its `interval` has the level 0.95.
        rows: intervals of rows hold together at the level 0.95 (Bonferroni).
        repeated: whether the interval is one between repetitions.
        notes: what a reader must know.
    """

    a: str
    b: str
    verdict: str
    speedup: float
    interval: tuple[float, float] | None
    rows: list[Row]
    repeated: bool
    notes: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        """The verdict in words."""
        if not self.rows:
            return f"{self.b} against {self.a}: not shown: they have no point in common"
        shown = f"{self.speedup:.3f}x"
        if self.interval is not None:
            within = "" if self.repeated else " within these single runs"
            shown += f" (95 % interval{within} {self.interval[0]:.3f} to {self.interval[1]:.3f})"
        if self.verdict == NOT_SHOWN:
            return f"{self.b} faster or slower than {self.a}: not shown: {shown}"
        return f"{self.b} is {self.verdict} than {self.a}: {shown}"


@dataclass(frozen=True, slots=True)
class _Difference:
    """log B - log A with its standard error and degrees of freedom."""

    log: float
    error: float
    freedom: float

    def interval(self, level: float) -> tuple[float, float] | None:
        """Of the ratio."""
        if not math.isfinite(self.error):
            return None
        half = t_quantile((1 + level) / 2, self.freedom) * max(self.error, _SMALLEST)
        return math.exp(self.log - half), math.exp(self.log + half)


def _series_error(point: PointReport, metric: str) -> float:
    counts = point.series.get("output_tokens" if metric == "output_throughput" else "completed", ())
    return block_error([float(c) for c in counts[:-1]], fmean)


def _sample_error(point: PointReport, metric: str) -> float:
    name, _, which = metric.partition("_")
    column = point.samples.get(name, ())
    rows = [value for value in column if value is not None]
    statistic: Callable[[list[float]], float] = fmean
    if which != "mean":
        q = float(which[1:])
        statistic = lambda values: percentile(values, q)  # noqa: E731
    return block_error(rows, statistic)


def _error(point: PointReport, metric: str) -> float:
    """Standard error of the metric's logarithm from one run; NaN where it is unknown."""
    if point.completed < _FEWEST:
        return math.nan
    if metric in _FROM_ARRIVALS:
        return _series_error(point, metric)
    return _sample_error(point, metric)


def _logs(point: PointReport, metric: str) -> list[float]:
    values = [row.get(metric, math.nan) for row in point.repetitions]
    return [math.log(v) for v in values] if values and all(v > 0 for v in values) else []


def _difference(a: PointReport, b: PointReport, metric: str) -> _Difference | None:
    first, second = metrics(a).get(metric, 0.0), metrics(b).get(metric, 0.0)
    if not (first > 0 and second > 0):
        return None
    logs = _logs(a, metric), _logs(b, metric)
    if min(map(len, logs)) >= 2:
        parts = [variance(values) / len(values) for values in logs]
        error = math.sqrt(sum(parts))
        # Welch and Satterthwaite.
        below = sum(p * p / (len(v) - 1) for p, v in zip(parts, logs, strict=True))
        freedom = sum(parts) ** 2 / below if below > 0 else float(len(logs[0]) + len(logs[1]) - 2)
        return _Difference(fmean(logs[1]) - fmean(logs[0]), error, freedom)
    errors = [_error(point, metric) for point in (a, b)]
    fewest = min(a.completed, b.completed)
    freedom = max(1.0, fewest / block_length(fewest) - 1)
    return _Difference(math.log(second / first), math.hypot(*errors), freedom)


def _verdict(interval: tuple[float, float] | None, more_is_better: bool) -> str:
    if interval is None or interval[0] <= 1 <= interval[1]:
        return NOT_SHOWN
    return FASTER if (interval[0] > 1) == more_is_better else SLOWER


def _pairs(a: BenchReport, b: BenchReport) -> list[tuple[PointReport, PointReport]]:
    theirs = {(p.mode, p.value): p for p in b.points}
    keys = ((p, theirs.get((p.mode, p.value))) for p in a.points)
    return [(p, other) for p, other in keys if other is not None]


def _headline(
    found: Sequence[tuple[str, str, _Difference]],
) -> tuple[float, tuple[float, float] | None]:
    """The mean speed-up of the headline metrics, and its interval."""
    signed = [
        (diff.log if BETTER[metric] else -diff.log, diff)
        for mode, metric, diff in found
        if metric == _HEADLINES.get(mode, _OTHER_HEADLINE)
    ]
    if not signed:
        return 1.0, None
    mean = fmean(log for log, _ in signed)
    error = math.sqrt(sum(d.error**2 for _, d in signed)) / len(signed)
    freedom = min(d.freedom for _, d in signed)
    return math.exp(mean), _Difference(mean, error, freedom).interval(0.95)


def _quality_rows(a: BenchReport, b: BenchReport) -> list[Row]:
    """Accuracy and bits per byte on the same questions and text, by paired differences."""
    rows = []
    for name, metric, column in (
        ("answers", "accuracy", "outcomes"), ("perplexity", "bits_per_byte", "windows"),
    ):  # fmt: skip
        mine, theirs = ((r.quality or {}).get(name) for r in (a, b))
        if not mine or not theirs or mine["file"] != theirs["file"] or not mine[metric]:
            continue
        pairs = list(zip(mine[column], theirs[column], strict=False))
        apart = [(y or 0) - (x or 0) for x, y in pairs]
        interval = None
        if len(mine[column]) == len(theirs[column]) >= 2 and len(set(apart)) > 1:
            low, high = mean_interval(apart)
            interval = ((mine[metric] + low) / mine[metric], (mine[metric] + high) / mine[metric])
        verdict = _verdict(interval, metric == "accuracy")
        words = {FASTER: "better", SLOWER: "worse"}
        rows.append(
            Row(
                "quality", 0.0, metric, mine[metric], theirs[metric],
                theirs[metric] / mine[metric], interval, words.get(verdict, verdict),
            )
        )  # fmt: skip
    return rows


def _searched(
    a: BenchReport, b: BenchReport
) -> tuple[float, tuple[float, float], list[str]] | None:
    """The ratio of the rates that two goodput searches found, with what their brackets allow;
    None where there are not two searches for the same objectives."""
    first, second = a.search, b.search
    if not first or not second or not first["rate"] or not second["rate"]:
        return None
    if (a.objectives, first["target"]) != (b.objectives, second["target"]):
        return None
    above = [found["above"] or math.inf for found in (first, second)]
    notes = ["Goodput searches: the interval is what their brackets allow; it knows no noise."]
    low, high = second["rate"] / above[0], above[1] / first["rate"]
    return second["rate"] / first["rate"], (low, high), notes


def _search_row(a: BenchReport, b: BenchReport, interval: tuple[float, float]) -> Row:
    assert a.search is not None and b.search is not None
    rates = a.search["rate"], b.search["rate"]
    verdict = _verdict(interval, True)
    return Row("search", 0.0, "goodput", *rates, rates[1] / rates[0], interval, verdict)


def _cached_share(report: BenchReport) -> float:
    given = sum(p.input_tokens for p in report.points)
    return sum(p.cached_tokens for p in report.points) / given if given else 0.0


def compare(a: BenchReport, b: BenchReport) -> Comparison:
    """Judge B against A at the points (mode and value) that both have.

    With two or more repetitions on both sides the noise is that between repetitions; else it is
    that within each run, by the block bootstrap, and a note says so.
    """
    pairs = _pairs(a, b)
    found = [
        (x, y, metric, diff)
        for x, y in pairs
        for metric in BETTER
        if not (metric in _FROM_ARRIVALS and x.mode != "concurrency")
        and (diff := _difference(x, y, metric)) is not None
    ]
    level = 1 - 0.05 / max(1, len(found))
    rows = []
    for x, y, metric, diff in found:
        interval = diff.interval(level)
        rows.append(
            Row(
                x.mode, x.value, metric, metrics(x)[metric], metrics(y)[metric],
                math.exp(diff.log), interval, _verdict(interval, BETTER[metric]),
            )
        )  # fmt: skip
    rows += _quality_rows(a, b)
    speedup, interval = _headline([(x.mode, metric, diff) for x, _, metric, diff in found])
    notes: list[str] = []
    if (searched := _searched(a, b)) is not None:
        speedup, interval, notes = searched
        rows.insert(0, _search_row(a, b, interval))
    repeated = all(min(len(x.repetitions), len(y.repetitions)) >= 2 for x, y in pairs)
    if not repeated:
        notes.append(
            "Without repetitions on both sides the intervals know the noise within each run, not "
            "between runs: measure both with --repeat 3 or more, alternately."
        )
    for report in (a, b):
        notes += [f"{report.label}: {note}" for note in report.notes]
        if any(p.steady.get("verdict") == "drifting" for p in report.points):
            notes.append(f"{report.label}: some points are not steady.")
    shares = [_cached_share(report) for report in (a, b)]
    if abs(shares[0] - shares[1]) > 0.05:
        notes.append(
            f"The server had {shares[0]:.0%} of A's prompt tokens in its cache, {shares[1]:.0%} of "
            "B's: give the second run another --seed, or restart the server."
        )
    facts = [(r.input_tokens, r.output_tokens, r.workload) for r in (a, b)]
    if all(f[0] for f in facts) and _load(facts[0]) != _load(facts[1]):
        notes.append("The loads differ: the ratios compare them, too.")
    verdict = _verdict(interval, True)
    return Comparison(a.label, b.label, verdict, speedup, interval, rows, repeated, notes)


_NO_LOAD = ("seed", "concurrency", "rates", "repeat", "requests", "model", "prices")


def _load(facts: tuple[str, str, dict[str, object]]) -> tuple[object, ...]:
    given, wanted, workload = facts
    return given, wanted, {k: v for k, v in workload.items() if k not in _NO_LOAD}
