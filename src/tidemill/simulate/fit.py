"""Fitting costs to measured steps.

Steps that compute alike form a class, whose time is the median of theirs: other processes delay
single steps, never advance them. The coefficients are the non-negative least squares of the
relative error over the classes (Lawson and Hanson, Solving Least Squares Problems, 1974), found by
coordinate descent. The time by tokens is a line with knots: its increments between knots are
coefficients as well, so that it never falls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from tidemill.base.errors import config_error
from tidemill.simulate.costs import Measured, Residuals, StepSeconds, Work

ENOUGH = 4
"""Steps of a class that say something about it."""

_LEAST_STEPS = 30
_SHARES = 200
_SWEEPS = 4000
_CONVERGED = 1e-10
_MOST_WEIGHT = 64
_FINE = 4  # classes per factor of two


class Step(NamedTuple):
    """A measured step: its work, and the seconds that the executor computed."""

    work: Work
    seconds: float


class _Class(NamedTuple):
    work: Work
    seconds: float
    steps: int


def fit(steps: Sequence[Step]) -> tuple[StepSeconds, Residuals, Measured]:
    """Fit the seconds of a step to measured ones.

    Raises:
        TidemillError: CONFIG if there are too few steps.
    """
    steps = [step for step in steps if step.seconds > 0 and step.work.tokens > 0]
    if len(steps) < _LEAST_STEPS:
        raise config_error(
            "steps", f"{len(steps)} measured steps are too few for a fit; {_LEAST_STEPS} are needed"
        )
    classes = _classes(steps)
    knots = _knots(classes)
    rows = [_features(known.work, knots) for known in classes]
    weights = [min(known.steps, _MOST_WEIGHT) for known in classes]
    found = _non_negative(rows, [known.seconds for known in classes], weights)
    first, *increments = found[: len(knots)]
    line = [first]
    for more in increments:
        line.append(line[-1] + more)
    projection, sample, pair, reach = found[len(knots) :]
    seconds = StepSeconds(
        tokens=tuple(zip(knots, line, strict=True)),
        projection=projection, sample=sample, pair=pair, reach=reach,
    )  # fmt: skip
    return seconds, _residuals(seconds, steps, classes), _largest(steps)


def fit_gaps(gaps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds that the engine's loop takes per step, and for each of its rows, from (rows, seconds)
    between steps: a line through the medians, neither below 0."""
    by_rows: dict[int, list[float]] = {}
    for rows, seconds in gaps:
        by_rows.setdefault(rows, []).append(seconds)
    if not by_rows:
        return 0.0, 0.0
    features = [[1.0, float(rows)] for rows in by_rows]
    middle = [max(median(seconds), 1e-9) for seconds in by_rows.values()]
    weights = [min(len(seconds), _MOST_WEIGHT) for seconds in by_rows.values()]
    step, row = _non_negative(features, middle, weights)
    return step, row


def _size(value: float) -> int:
    return round(_FINE * math.log2(1 + value))


def _classes(steps: Sequence[Step]) -> list[_Class]:
    groups: dict[tuple[int, ...], list[Step]] = {}
    for step in steps:
        work = step.work
        key = (_size(work.tokens), _size(work.pairs), _size(work.reach), _size(work.samples))
        groups.setdefault(key, []).append(step)
    found = []
    for like in groups.values():
        means = [sum(step.work[i] for step in like) / len(like) for i in range(len(Work._fields))]
        found.append(
            _Class(Work(*means), median(s.seconds for s in like), len(like))  # type: ignore[arg-type]
        )
    return found


def _knots(classes: Sequence[_Class]) -> list[float]:
    """Numbers of tokens near powers of two that were measured."""
    knots: dict[int, list[float]] = {}
    for known in classes:
        knots.setdefault(round(math.log2(known.work.tokens)), []).append(known.work.tokens)
    return sorted(sum(near) / len(near) for near in knots.values())


def _features(work: Work, knots: Sequence[float]) -> list[float]:
    """Of each coefficient, how much a step has of it."""
    row = [1.0]
    for place in range(1, len(knots)):
        low, high = knots[place - 1], knots[place]
        share = (work.tokens - low) / (high - low)
        beyond = place == len(knots) - 1
        row.append(max(0.0, share if beyond else min(1.0, share)))
    return [*row, float(work.samples > 0), float(work.samples), work.pairs, work.reach]


def _non_negative(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """Coefficients of at least 0 with the least weighted squares of the relative error."""
    size = len(rows[0])
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(size)]
    gram = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for row, measured, weight in zip(rows, seconds, weights, strict=True):
        x = [value / most / measured for value, most in zip(row, scale, strict=True)]
        for i, value in enumerate(x):
            if value:
                right[i] += weight * value
                for j, other in enumerate(x):
                    gram[i][j] += weight * value * other
    found = [0.0] * size
    for _ in range(_SWEEPS):
        moved = 0.0
        for i in range(size):
            if gram[i][i] <= 0.0:
                continue
            rest = sum(a * b for a, b in zip(gram[i], found, strict=True)) - gram[i][i] * found[i]
            value = max(0.0, (right[i] - rest) / gram[i][i])
            moved = max(moved, abs(value - found[i]) * math.sqrt(gram[i][i]))
            found[i] = value
        if moved < _CONVERGED:
            break
    return [value / most for value, most in zip(found, scale, strict=True)]


def _residuals(seconds: StepSeconds, steps: Sequence[Step], classes: Sequence[_Class]) -> Residuals:
    misses = [abs(known.seconds / seconds.of(known.work) - 1) for known in classes]
    common = [
        miss for miss, known in zip(misses, classes, strict=True) if known.steps >= ENOUGH
    ] or misses
    ratios = sorted(step.seconds / seconds.of(step.work) for step in steps)
    shares = min(_SHARES, len(ratios))
    cuts = [round(len(ratios) * i / shares) for i in range(shares + 1)]
    at = [fmean(ratios[low:high]) for low, high in pairwise(cuts)]
    return Residuals(
        steps=len(steps),
        error=round(median(common), 5),
        worst=round(max(common), 5),
        ratios=tuple(round(ratio, 5) for ratio in at),
    )


def _largest(steps: Sequence[Step]) -> Measured:
    works = [step.work for step in steps]
    return Measured(
        tokens=max(work.tokens for work in works),
        pairs=max(work.pairs for work in works),
        reach=max(work.reach for work in works),
        samples=max(work.samples for work in works),
    )
