"""When requests are due in an open loop; all times are seconds from the point's start."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator


def constant(rate: float) -> Iterator[float]:
    """Equal gaps."""
    number = 0
    while True:
        number += 1
        yield number / rate


def gamma(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Gaps from a gamma distribution with this shape and the mean 1 / rate.

    Args:
        burstiness: 1 is a Poisson process; below it, arrivals come in bursts; above it, they are
            more regular. (The coefficient of variation of the gaps is 1 / sqrt(burstiness).)
    """
    due = 0.0
    while True:
        due += rng.gammavariate(burstiness, 1 / (rate * burstiness))
        yield due


def ramp(first: float, last: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """A Poisson process whose rate goes from `first` to `last` linearly within `seconds`, where
    it ends. Unit-rate arrivals are mapped through the inverse of the integrated rate."""
    slope = (last - first) / seconds
    total = (first + last) / 2 * seconds
    mass = 0.0
    while (mass := mass + rng.expovariate(1.0)) < total:
        if abs(slope) < 1e-12:
            yield mass / first
        else:
            yield (math.sqrt(first * first + 2 * slope * mass) - first) / slope


def arrivals(kind: str, rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Endless due times at a mean rate; `kind` is one of `KINDS`."""
    if kind == "constant":
        return constant(rate)
    return gamma(rate, burstiness if kind == "gamma" else 1.0, rng)


KINDS = ("poisson", "gamma", "constant")
