"""Noise of single steps: drawn from how measured steps differ from what was fitted to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence


def noise(ratios: Sequence[float], seed: str) -> Callable[[], float]:
    """Draws factors of a step's seconds; see `costs.Residuals.ratios`. Equal seeds give equal ones
    on every machine."""
    draws = random.Random(seed).random
    count = len(ratios)

    def draw() -> float:
        return ratios[int(draws() * count)]

    return draw


def no_noise() -> float:
    """Every step takes what was fitted."""
    return 1.0
