"""Statistics of measurements: percentiles, Student's t, block bootstrap."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, stdev

_RESAMPLES, _FEWEST_RESAMPLES = 300, 50
_WORK = 400_000  # resampled rows that an error may cost
_FEWEST = 20  # rows below which a run says nothing about its noise


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-th percentile of ascending values, with linear interpolation; NaN if empty."""
    if not ordered:
        return math.nan
    position = (len(ordered) - 1) * q / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1.0), tiny)
    value = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / ((1.0 + term * d) or tiny)
            c = (1.0 + term / c) or tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-12:
            break
    return value


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log + a * math.log(x) + b * math.log1p(-x)) * _beta_fraction(a, b, x) / a


def t_quantile(p: float, freedom: float) -> float:
    """The quantile p (0.5 to 1) of Student's t with `freedom` degrees of freedom."""
    if math.isinf(freedom):
        return NormalDist().inv_cdf(p)
    low, high = 0.0, 1e6
    for _ in range(100):
        t = (low + high) / 2
        tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
        low, high = (t, high) if tail > 1 - p else (low, t)
    return (low + high) / 2


def mean_interval(values: Sequence[float], level: float = 0.95) -> list[float]:
    """The confidence interval of the mean of independent values (two or more)."""
    half = t_quantile((1 + level) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return [fmean(values) - half, fmean(values) + half]


def block_length(count: int) -> int:
    """Neighbouring rows that stay together in the block bootstrap."""
    return max(1, round(math.sqrt(count) / 2))


def block_errors(
    rows: Sequence[float], statistics: Callable[[list[float]], Sequence[float]], seed: int = 0
) -> list[float]:
    """The standard errors of statistics' logarithms by the moving block bootstrap; empty where
    there are too few rows. Blocks keep neighbours together: requests that ran at the same time
    are not independent.

    Args:
        rows: in the order of time.
        statistics: of resampled rows in ascending order; positive.
    """
    count = len(rows)
    if count < _FEWEST:
        return []
    block = block_length(count)
    draws = random.Random(seed)
    logs: list[list[float]] = []
    for _ in range(max(_FEWEST_RESAMPLES, min(_RESAMPLES, _WORK // count))):
        sample: list[float] = []
        while len(sample) < count:
            start = draws.randrange(count - block + 1)
            sample += rows[start : start + block]
        values = statistics(sorted(sample[:count]))
        if all(value > 0 for value in values):
            logs.append([math.log(value) for value in values])
    return [stdev(column) for column in zip(*logs, strict=True)] if len(logs) > 1 else []


def block_error(rows: Sequence[float], statistic: Callable[[list[float]], float]) -> float:
    """One of `block_errors`; NaN where there are too few rows."""
    return next(iter(block_errors(rows, lambda values: [statistic(values)])), math.nan)


def wilson(hits: int, count: int, level: float = 0.95) -> list[float]:
    """Wilson's confidence interval of a share."""
    if count == 0:
        return [0.0, 1.0]
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = hits / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return [max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)]
