"""Types of 256 values with integer group scales: Q2_K .. Q6_K, and the ternary TQ1_0 and TQ2_0.

Layouts: ggml's reference functions.
"""

from __future__ import annotations

import numpy as np

from tidemill.models.blocks.base import Blocks, Int, UInt8, half, ones, planes


def q2_k(data: UInt8) -> Blocks:
    """16 bytes of a 4-bit scale and a 4-bit offset, 64 bytes of bit pairs, d, dmin."""
    scales = data[:, :16].astype(np.int16)
    q = planes(data[:, 16:80], 32, [0, 2, 4, 6], 3).reshape(-1, 16, 16)
    return Blocks(half(data[:, 80:82]), scales & 15, q, half(data[:, 82:84]), scales >> 4)


def q3_k(data: UInt8) -> Blocks:
    """32 bytes of third bits (a clear one means -4), 64 of bit pairs, 12 of 6-bit scales, d."""
    low = planes(data[:, 96:104], 8, [0, 4], 15)
    high = planes(data[:, 104:108], 4, [0, 2, 4, 6], 3)
    third = planes(data[:, :32], 32, list(range(8)), 1)
    q = planes(data[:, 32:96], 32, [0, 2, 4, 6], 3) - ((third ^ 1) << 2)
    return Blocks(half(data[:, 108:110]), (low | (high << 4)) - 32, q.reshape(-1, 16, 16))


def _scales_and_offsets(data: UInt8) -> tuple[Int, Int]:
    """12 bytes: eight 6-bit scales and eight 6-bit offsets, the last four of each in two parts."""
    first, second, rest = (data[:, i : i + 4].astype(np.int16) for i in (0, 4, 8))
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 2) & 48)], axis=1)
    offsets = np.concatenate([second & 63, (rest >> 4) | ((second >> 2) & 48)], axis=1)
    return scales, offsets


def q4_k(data: UInt8) -> Blocks:
    """d, dmin, 12 bytes of scales and offsets, 128 bytes of nibbles."""
    scales, offsets = _scales_and_offsets(data[:, 4:16])
    q = planes(data[:, 16:], 32, [0, 4], 15).reshape(-1, 8, 32)
    return Blocks(half(data[:, :2]), scales, q, half(data[:, 2:4]), offsets)


def q5_k(data: UInt8) -> Blocks:
    """d, dmin, 12 bytes of scales and offsets, 32 bytes of fifth bits, 128 bytes of nibbles."""
    scales, offsets = _scales_and_offsets(data[:, 4:16])
    q = planes(data[:, 48:], 32, [0, 4], 15) | (planes(data[:, 16:48], 32, list(range(8)), 1) << 4)
    return Blocks(half(data[:, :2]), scales, q.reshape(-1, 8, 32), half(data[:, 2:4]), offsets)


def q6_k(data: UInt8) -> Blocks:
    """128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d; q - 32."""
    q = planes(data[:, :128], 64, [0, 4], 15) | (planes(data[:, 128:192], 32, [0, 2, 4, 6], 3) << 4)
    scales = np.ascontiguousarray(data[:, 192:208]).view(np.int8).astype(np.int16)
    return Blocks(half(data[:, 208:]), scales, (q - 32).reshape(-1, 16, 16))


def _trits(data: UInt8, width: int, count: int) -> Int:
    """`count` ternary digits per byte. A digit is the carry out of a byte when it is tripled, after
    a multiplication by a power of three modulo 256."""
    powers = (3 ** np.arange(count)).astype(np.uint8).reshape(1, 1, -1, 1)
    turned = data.reshape(len(data), -1, 1, width) * powers
    digits = (turned.astype(np.uint16) * 3) >> 8
    return digits.reshape(len(data), -1).astype(np.int16) - 1


def tq1_0(data: UInt8) -> Blocks:
    """48 bytes of five digits (32 and 16 of them interleaved), 4 bytes of four, d."""
    parts = [
        _trits(data[:, :32], 32, 5),
        _trits(data[:, 32:48], 16, 5),
        _trits(data[:, 48:52], 4, 4),
    ]
    q = np.concatenate(parts, axis=1)
    return Blocks(half(data[:, 52:]), ones(len(data)), q[:, None])


def tq2_0(data: UInt8) -> Blocks:
    """64 bytes of bit pairs, d; q - 1."""
    q = planes(data[:, :64], 32, [0, 2, 4, 6], 3) - 1
    return Blocks(half(data[:, 64:]), ones(len(data)), q[:, None])
