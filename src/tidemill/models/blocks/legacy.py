"""Types with one scale per block, and the small floats: Q4_0 .. Q8_0, IQ4_NL, MXFP4, NVFP4.

Layouts: ggml's reference functions.
"""

from __future__ import annotations

import numpy as np

from tidemill.models.blocks.base import Blocks, Int, UInt8, half, ones, planes

IQ4_VALUES = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int16
)
# Twice the values of a 4-bit float (OCP Microscaling: e2m1), sign in the highest bit.
_FP4 = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int16)


def _nibbles(data: UInt8) -> Int:
    return planes(data, 16, [0, 4], 15)


def q4_0(data: UInt8) -> Blocks:
    """d, 16 bytes of nibbles; q - 8."""
    return Blocks(half(data[:, :2]), ones(len(data)), (_nibbles(data[:, 2:]) - 8)[:, None])


def q4_1(data: UInt8) -> Blocks:
    """d, m, 16 bytes of nibbles; d * q + m."""
    q = _nibbles(data[:, 4:])[:, None]
    return Blocks(half(data[:, :2]), ones(len(data)), q, -half(data[:, 2:4]), ones(len(data)))


def _five_bits(low: UInt8, high: UInt8) -> Int:
    """16 bytes of low nibbles, and a word that holds each value's fifth bit."""
    top = np.unpackbits(np.ascontiguousarray(high), axis=1, bitorder="little").astype(np.int16)
    return _nibbles(low) | (top << 4)


def q5_0(data: UInt8) -> Blocks:
    """d, 4 bytes of fifth bits, 16 bytes of nibbles; q - 16."""
    q = _five_bits(data[:, 6:], data[:, 2:6]) - 16
    return Blocks(half(data[:, :2]), ones(len(data)), q[:, None])


def q5_1(data: UInt8) -> Blocks:
    """d, m, 4 bytes of fifth bits, 16 bytes of nibbles; d * q + m."""
    q = _five_bits(data[:, 8:], data[:, 4:8])[:, None]
    return Blocks(half(data[:, :2]), ones(len(data)), q, -half(data[:, 2:4]), ones(len(data)))


def q8_0(data: UInt8) -> Blocks:
    """d, 32 signed bytes."""
    q = np.ascontiguousarray(data[:, 2:]).view(np.int8).astype(np.int16)
    return Blocks(half(data[:, :2]), ones(len(data)), q[:, None])


def iq4_nl(data: UInt8) -> Blocks:
    """d, 16 bytes of nibbles that index 16 uneven steps."""
    return Blocks(half(data[:, :2]), ones(len(data)), IQ4_VALUES[_nibbles(data[:, 2:])][:, None])


def mxfp4(data: UInt8) -> Blocks:
    """A power of two (the exponent of a float), 16 bytes of 4-bit floats.

    The table holds twice the floats, so the scale is half the power. The two smallest scales are
    subnormal.
    """
    e = data[:, :1].astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << e, (np.maximum(e, 1) - 1) << np.uint32(23))
    d = bits.astype(np.uint32).view(np.float32)
    return Blocks(d, ones(len(data)), _FP4[_nibbles(data[:, 1:])][:, None])


def nvfp4(data: UInt8) -> Blocks:
    """Four groups of 16, each with a scale as an unsigned 8-bit float (e4m3) and 8 bytes of 4-bit
    floats.

    Each group becomes a block, since its scale is not a multiple of a common one.
    """
    scales = data[:, :4].reshape(-1, 1)
    exponent, mantissa = (scales >> 3).astype(np.int32) & 15, (scales & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    d = np.where(exponent == 0, np.ldexp(mantissa, -9), normal) * 0.5
    d[(scales == 0) | (scales == 0x7F)] = 0
    d32 = d.astype(np.float32)
    q = _FP4[planes(data[:, 4:], 8, [0, 4], 15)]
    return Blocks(d32, ones(len(d)), q.reshape(-1, 1, 16))
