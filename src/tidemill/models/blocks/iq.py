"""Types whose values are points of fixed grids: IQ1 .. IQ4.

A grid entry holds four or eight magnitudes. Their signs are stored separately, directly or as an
index into the table of even sign masks. Layouts: ggml's reference functions; grids: `grids.py`.
"""

from __future__ import annotations

import numpy as np

from tidemill.models.blocks.base import Blocks, Int, UInt8, fields, half, planes, words
from tidemill.models.blocks.grids import grid
from tidemill.models.blocks.legacy import IQ4_VALUES


def _signs(masks: Int) -> Int:
    """Bit masks [..., n] as factors: int16 [..., n * 8], -1 where a bit is set."""
    bits = (masks[..., None] >> np.arange(8, dtype=np.int16)) & 1
    return (1 - 2 * bits).reshape(*masks.shape[:-1], -1).astype(np.int16)


def _even_signs(codes: Int) -> Int:
    """Sign masks with an even number of minus signs: seven bits, the eighth is their parity."""
    parity = codes ^ (codes >> 4)
    parity ^= parity >> 2
    parity ^= parity >> 1
    return _signs(codes | ((parity & 1) << 7))


def _scale_nibbles(data: UInt8) -> Int:
    """The low and then the high nibble of each byte as an odd number: 2 s + 1."""
    return 2 * fields(data, [0, 4], 15).reshape(len(data), -1) + 1


def _gridded(d: np.ndarray, sub: Int, points: Int, signs: Int) -> Blocks:
    groups = sub.shape[1]
    q = points.reshape(len(points), groups, -1) * signs.reshape(len(points), groups, -1)
    return Blocks(d, sub, q)


def iq2_xxs(data: UInt8) -> Blocks:
    """d; per 32 values four grid numbers, and a word of four sign codes and a scale."""
    pairs = words(data[:, 2:], "u4").reshape(len(data), 8, 2)
    numbers = np.ascontiguousarray(pairs[:, :, 0]).view(np.uint8)
    codes = fields(pairs[:, :, 1], [0, 7, 14, 21], 127).reshape(len(data), -1)
    sub = 2 * (pairs[:, :, 1] >> 28).astype(np.int16) + 1
    d = half(data[:, :2]) * np.float32(0.125)
    return _gridded(d, sub, grid("IQ2_XXS")[numbers], _even_signs(codes))


def iq2_xs(data: UInt8) -> Blocks:
    """d; 32 words of a grid number (9 bits) and a sign code; a scale per 16 values."""
    codes = words(data[:, 2:66], "u2")
    points = grid("IQ2_XS")[codes & 511]
    d = half(data[:, :2]) * np.float32(0.125)
    signs = _even_signs((codes >> 9).astype(np.int16))
    return _gridded(d, _scale_nibbles(data[:, 66:]), points, signs)


def iq2_s(data: UInt8) -> Blocks:
    """d; 32 low bytes of grid numbers, 32 sign masks, 8 bytes of two high bits; scales per 16."""
    high = fields(data[:, 66:74], [0, 2, 4, 6], 3).reshape(len(data), -1)
    points = grid("IQ2_S")[data[:, 2:34].astype(np.int16) | (high << 8)]
    d = half(data[:, :2]) * np.float32(0.125)
    return _gridded(
        d, _scale_nibbles(data[:, 74:]), points, _signs(data[:, 34:66].astype(np.int16))
    )


def iq3_xxs(data: UInt8) -> Blocks:
    """d; 64 grid numbers; per 32 values a word of four sign codes and a scale."""
    tail = words(data[:, 66:], "u4")
    codes = fields(tail, [0, 7, 14, 21], 127).reshape(len(data), -1)
    sub = 2 * (tail >> 28).astype(np.int16) + 1
    # All magnitudes of this grid are even. Halved, they fit six bits with their signs.
    points = grid("IQ3_XXS")[data[:, 2:66]] >> 1
    return _gridded(half(data[:, :2]) * np.float32(0.5), sub, points, _even_signs(codes))


def iq3_s(data: UInt8) -> Blocks:
    """d; 64 low bytes of grid numbers, 8 bytes of ninth bits, 32 sign masks; a scale per 32."""
    high = fields(data[:, 66:74], list(range(8)), 1).reshape(len(data), -1)
    points = grid("IQ3_S")[data[:, 2:66].astype(np.int16) | (high << 8)]
    signs = _signs(data[:, 74:106].astype(np.int16))
    return _gridded(half(data[:, :2]), _scale_nibbles(data[:, 106:]), points, signs)


# The grid of IQ1 holds -1, 0 and 1, shifted by plus or minus an eighth. In eighths all are
# integers.
def _with_delta(points: Int, minus: Int) -> Int:
    return 8 * points.astype(np.int16) + np.where(minus != 0, -1, 1)[..., None].astype(np.int16)


def iq1_s(data: UInt8) -> Blocks:
    """d; 32 low bytes of grid numbers; per 32 values a word of high bits, a scale, delta's sign."""
    tail = words(data[:, 34:], "u2")
    high = fields(tail, [0, 3, 6, 9], 7).reshape(len(data), -1)
    points = grid("IQ1_S")[data[:, 2:34].astype(np.int16) | (high << 8)]
    minus = np.repeat((tail >> 15).astype(np.int16), 4, axis=1)
    q = _with_delta(points, minus).reshape(len(data), 8, 32)
    sub = 2 * ((tail >> 12) & 7).astype(np.int16) + 1
    return Blocks(half(data[:, :2]) * np.float32(0.125), sub, q)


def iq1_m(data: UInt8) -> Blocks:
    """32 low bytes of grid numbers; 16 bytes of high bits and delta's signs; scales per 16 values,
    in four words whose highest nibbles form d."""
    tail = words(data[:, 48:], "u2")
    nibbles = (tail >> 12) << np.array([0, 4, 8, 12], np.uint16)
    bits = np.bitwise_or.reduce(nibbles, axis=1, keepdims=True)
    d = np.ascontiguousarray(bits).view(np.float16).astype(np.float32) * np.float32(0.125)
    head = fields(data[:, 32:48], [0, 4], 15).reshape(len(data), -1)
    points = grid("IQ1_S")[data[:, :32].astype(np.int16) | ((head & 7) << 8)]
    q = _with_delta(points, head & 8).reshape(len(data), 16, 16)
    return Blocks(d, 2 * fields(tail, [0, 3, 6, 9], 7).reshape(len(data), -1) + 1, q)


def iq4_xs(data: UInt8) -> Blocks:
    """d; eight 6-bit scales in a word of high and four bytes of low bits; nibbles as in IQ4_NL."""
    high = fields(words(data[:, 2:4], "u2"), list(range(0, 16, 2)), 3).reshape(len(data), -1)
    low = fields(data[:, 4:8], [0, 4], 15).reshape(len(data), -1)
    q = IQ4_VALUES[planes(data[:, 8:], 16, [0, 4], 15)].reshape(-1, 8, 32)
    return Blocks(half(data[:, :2]), (low | (high << 4)) - 32, q)
