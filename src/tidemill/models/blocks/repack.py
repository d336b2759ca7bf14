"""Writes scales and integers as blocks that kernels multiply, when that is lossless."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tidemill.models.blocks.base import Blocks, Float32, Int, UInt8
from tidemill.models.blocks.legacy import IQ4_VALUES
from tidemill.models.tensors import DTYPE_BLOCKS

# Block type -> lossless target types, smallest first. Scales at the far end of float16 may not fit.
_HOLDERS: dict[str, tuple[str, ...]] = {
    "TQ1_0": ("Q4_0",),
    "TQ2_0": ("Q4_0",),
    "Q3_K": ("Q6_K",),
    "IQ3_XXS": ("Q6_K",),
    "IQ3_S": ("Q6_K",),
    "IQ1_S": ("Q6_K",),
    "IQ1_M": ("Q6_K",),
}


# Block type -> target type that represents every value once group scales are multiplied out and
# rounded to float16. This error is at most 0.05 %, against several percent of the type's
# quantization.
NEAR_HOLDERS = {"IQ4_XS": "IQ4_NL", "IQ2_XXS": "Q8_0"}


class Inexact(ValueError):
    """The numbers do not fit the type; the message states which."""


def holder(dtype: str) -> str | None:
    """The kernel type that holds a block type without loss (itself if kernels support it), or
    None."""
    if dtype in DTYPE_BLOCKS:
        return dtype
    return next((t for t in _HOLDERS.get(dtype, ()) if t in DTYPE_BLOCKS), None)


def multiplied_out(blocks: Blocks) -> Blocks:
    """Each group as a block, with its scale rounded to float16."""
    scale = (blocks.d * blocks.sub.astype(np.float32)).reshape(-1, 1)
    with np.errstate(over="ignore"):
        scale = scale.astype(np.float16).astype(np.float32)
    if not np.isfinite(scale).all():
        raise Inexact("a group scale does not fit float16")
    width = blocks.q.shape[2]
    return Blocks(scale, np.ones_like(scale, np.int16), blocks.q.reshape(-1, 1, width))


def _halves(d: Float32, q: Int) -> UInt8:
    """Scales [blocks, 1] as float16 bytes [blocks, 2]; the scale of an all-zero block becomes 0."""
    d = np.where((q == 0).all(axis=tuple(range(1, q.ndim)))[:, None], np.float32(0), d)
    with np.errstate(over="ignore"):
        half = d.astype(np.float16)
    if not np.array_equal(half.astype(np.float32), d):
        at = np.flatnonzero(half.astype(np.float32)[:, 0] != d[:, 0])[0]
        raise Inexact(f"its scale {d[at, 0]:.9g} does not fit float16")
    return half.view(np.uint8)


def _check_range(q: Int, low: int, high: int) -> None:
    if q.size and (q.min() < low or q.max() > high):
        raise Inexact(f"its integers reach from {q.min()} to {q.max()}, beyond {low} to {high}")


def _single(blocks: Blocks) -> tuple[Float32, Int]:
    """Scales [n, 1] and integers [n, 32] of blocks with a single group, whose length is a multiple
    of 32."""
    if blocks.offset is not None or blocks.sub.shape[1] != 1 or (blocks.sub != 1).any():
        raise Inexact("it has scales or offsets per group")
    parts = blocks.q.shape[2] // 32
    return np.repeat(blocks.d, parts, axis=0), blocks.q.reshape(-1, 32)


def pack_q8_0(blocks: Blocks) -> UInt8:
    """uint8 [n, 34]."""
    d, q = _single(blocks)
    _check_range(q, -128, 127)
    return np.concatenate([_halves(d, q), q.astype(np.int8).view(np.uint8)], axis=1)


def pack_q4_0(blocks: Blocks) -> UInt8:
    """uint8 [n, 18]."""
    d, q = _single(blocks)
    _check_range(q, -8, 7)
    nibbles = (q + 8).astype(np.uint8)
    return np.concatenate([_halves(d, q), nibbles[:, :16] | (nibbles[:, 16:] << 4)], axis=1)


def pack_q5_0(blocks: Blocks) -> UInt8:
    """uint8 [n, 22]."""
    d, q = _single(blocks)
    _check_range(q, -16, 15)
    codes = (q + 16).astype(np.uint8)
    nibbles = (codes[:, :16] & 15) | (codes[:, 16:] << 4)
    fifth = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.concatenate([_halves(d, q), fifth, nibbles], axis=1)


_IQ4_CODES = np.full(256, 16, np.uint8)  # by value, from -128; 16: not a step
_IQ4_CODES[IQ4_VALUES + 128] = np.arange(16)


def pack_iq4_nl(blocks: Blocks) -> UInt8:
    """uint8 [n, 18]."""
    d, q = _single(blocks)
    _check_range(q, -128, 127)
    codes = _IQ4_CODES[q + 128]
    if codes.size and codes.max() > 15:
        raise Inexact("its integers are not steps of IQ4_NL")
    return np.concatenate([_halves(d, q), codes[:, :16] | (codes[:, 16:] << 4)], axis=1)


def pack_q6_k(blocks: Blocks) -> UInt8:
    """uint8 [n, 210], from blocks of 256 values."""
    if blocks.offset is not None:
        raise Inexact("it has offsets per group")
    count = len(blocks.d)
    q = blocks.q.reshape(count, 256)
    _check_range(q, -32, 31)
    sub = np.repeat(blocks.sub, 16 // blocks.sub.shape[1], axis=1)
    _check_range(sub, -128, 127)
    codes = (q + 32).astype(np.uint8).reshape(count, 2, 4, 32)
    low, high = codes & 15, codes >> 4
    nibbles = low[:, :, :2] | (low[:, :, 2:] << 4)
    pairs = high[:, :, 0] | (high[:, :, 1] << 2) | (high[:, :, 2] << 4) | (high[:, :, 3] << 6)
    scales = sub.astype(np.int8).view(np.uint8)
    parts = [nibbles.reshape(count, 128), pairs.reshape(count, 64), scales, _halves(blocks.d, q)]
    return np.concatenate(parts, axis=1)


PACKERS: dict[str, Callable[[Blocks], NDArray[np.uint8]]] = {
    "Q8_0": pack_q8_0,
    "Q4_0": pack_q4_0,
    "Q5_0": pack_q5_0,
    "Q6_K": pack_q6_k,
    "IQ4_NL": pack_iq4_nl,
}
