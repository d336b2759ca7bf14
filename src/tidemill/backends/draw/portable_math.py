"""Logarithm and exponential whose bits do not depend on the machine: csrc/sample/portable_math.h.

Additions, multiplications and divisions of doubles alone, in the same order as there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

LN2 = 0.693147180559945309417232
_TWO, _TWO_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def portable_log(x: Float64) -> Float64:
    """Natural logarithm of finite positive values that are not subnormal."""
    bits = np.ascontiguousarray(x, np.float64).view(np.uint64)
    exponent = (bits >> np.uint64(52)).astype(np.int64) - 1023
    fraction = (bits & np.uint64(0xFFFFFFFFFFFFF)) | np.uint64(0x3FF0000000000000)
    m = fraction.view(np.float64)
    large = m > 1.4142135623730951
    m = np.where(large, m * 0.5, m)
    k = (exponent + large).astype(np.float64)
    f = m - 1.0
    s = f / (m + 1.0)
    q = s * s
    series = np.full_like(q, 1.0 / 23.0)
    for odd in range(21, 2, -2):
        series = series * q + 1.0 / odd
    return np.asarray(k * _TWO + (2.0 * s + (2.0 * s * q * series + k * _TWO_LOW)))


def portable_exp(x: float) -> float:
    """exp(x); 0 below -700, and x counts as at most 700."""
    if x < -700.0:
        return 0.0
    x = min(x, 700.0)
    k = float(np.floor(x * (1.0 / LN2) + 0.5))
    r = (x - k * _TWO) - k * _TWO_LOW
    series = 1.0
    for n in range(14, 0, -1):
        series = series * r / n + 1.0
    return float(series * 2.0**k)


def scaled_exp(x: Float32, maximum: np.float32, temperature: np.float32) -> tuple[Float32, Float32]:
    """z = (x - maximum) / temperature and exp(z), in float32 (csrc/sample/exp_row.cpp)."""
    f = np.float32
    with np.errstate(over="ignore"):
        z = (x - maximum) / temperature
        t = np.maximum(z, f(-87))
        shifted = t * f(1.44269504) + f(12582912)
        whole = shifted - f(12582912)
        r = (t - whole * f(0.693359375)) + whole * f(2.12194440e-4)
        p = np.full_like(r, f(1) / f(720))
        for term in (f(1) / f(120), f(1) / f(24), f(1) / f(6), f(0.5), f(1), f(1)):
            p = p * r + term
        power = ((whole.astype(np.int32) + 127) << 23).view(np.float32)
        return z, np.where(z < f(-87), f(0), p * power)
