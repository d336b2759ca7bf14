"""Slopes of attention with linear biases (Press et al. 2021)."""

from __future__ import annotations


def slopes(heads: int, bias_max: int = 8) -> tuple[float, ...]:
    """Slope of each head. For n heads, n a power of two: 2 ** (-bias_max * i / n), i = 1 .. n.
    Otherwise the slopes of the next smaller power of two, then every second one of the next larger.
    """
    if heads & (heads - 1) == 0:
        return tuple(2.0 ** (-bias_max * i / heads) for i in range(1, heads + 1))
    smaller = 1 << (heads.bit_length() - 1)
    between = slopes(2 * smaller, bias_max)[0::2]
    return slopes(smaller, bias_max) + between[: heads - smaller]
