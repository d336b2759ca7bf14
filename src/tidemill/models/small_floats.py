"""Eight-bit floats as tables, and bfloat16 bytes.

Definitions: OCP 8-bit Floating Point (e4m3 without infinities, e5m2 like float16's upper half) and
OCP Microscaling (e8m0, powers of two).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


def _e4m3() -> Float32:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(
        exponent == 0, np.ldexp(mantissa, -9), np.ldexp(1 + mantissa / 8, exponent - 7)
    )
    magnitude[(codes & 127) == 127] = np.nan
    signed: Float32 = np.where(codes & 128, -magnitude, magnitude).astype(np.float32)
    return signed


def _e5m2() -> Float32:
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


def e8m0() -> Float32:
    """float32 [256]: 2^(code - 127); 255 is NaN."""
    powers = np.ldexp(np.float32(1), np.arange(255) - 127)
    return np.append(powers, np.float32(np.nan)).astype(np.float32)


# Type of a safetensors file -> the values of its 256 codes.
SMALL_FLOATS: dict[str, Float32] = {"F8_E4M3": _e4m3(), "F8_E5M2": _e5m2()}


def bf16_bytes(values: Float32) -> memoryview:
    """Bytes of float32 values that bfloat16 represents exactly (or that are infinite or NaN)."""
    bits = np.ascontiguousarray(values).reshape(-1).view(np.uint32) >> 16
    return bits.astype(np.uint16).data.cast("B")


def rounded_bf16(values: Float32) -> Float32:
    """float32 values rounded to bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)
    found: Float32 = np.where(np.isnan(values), values, rounded.view(np.float32))
    return found
