"""Round-to-nearest quantization to Q4_K and Q6_K.

Layouts: ggml's reference functions. Scales follow from the extremes of each group. llama.cpp's
quantizer searches for better scales, which is slightly more exact and much slower.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.models.blocks.base import Blocks, half
from tidemill.models.blocks.repack import pack_q6_k

Float32 = NDArray[np.float32]
UInt8 = NDArray[np.uint8]


def _divided(values: Float32, by: Float32) -> Float32:
    return np.divide(values, by, out=np.zeros_like(values), where=by != 0)


def quantize_q6_k(x: Float32) -> UInt8:
    """float32 [..., k] to uint8 [..., k / 256 * 210]; k a multiple of 256."""
    groups = x.reshape(-1, 16, 16)
    at = np.abs(groups).argmax(axis=2, keepdims=True)
    scales = np.take_along_axis(groups, at, axis=2)[:, :, 0] / np.float32(-32)
    d = np.abs(scales).max(axis=1, keepdims=True) / np.float32(127)
    d = half(d.astype(np.float16).view(np.uint8))
    sub = np.rint(_divided(scales, np.broadcast_to(d, scales.shape))).clip(-127, 127)
    step = np.broadcast_to((d * sub)[:, :, None], groups.shape)
    q = np.rint(_divided(groups, step)).clip(-32, 31)
    packed = pack_q6_k(Blocks(d, sub.astype(np.int16), q.astype(np.int16)))
    return packed.reshape(*x.shape[:-1], -1)


def quantize_q4_k(x: Float32) -> UInt8:
    """float32 [..., k] to uint8 [..., k / 256 * 144]; k a multiple of 256."""
    groups = x.reshape(-1, 8, 32)
    low = np.minimum(groups.min(axis=2), np.float32(0))
    scales = (np.maximum(groups.max(axis=2), np.float32(0)) - low) / np.float32(15)
    d, offset = (
        (v.max(axis=1, keepdims=True) / np.float32(63)).astype(np.float16) for v in (scales, -low)
    )
    wide = [np.broadcast_to(v.astype(np.float32), scales.shape) for v in (d, offset)]
    sub = np.rint(_divided(scales, wide[0])).clip(0, 63)
    suboffset = np.rint(_divided(-low, wide[1])).clip(0, 63)
    step = np.broadcast_to((wide[0] * sub)[:, :, None], groups.shape)
    q = np.rint(_divided(groups + (wide[1] * suboffset)[:, :, None], step)).clip(0, 15)
    codes = q.astype(np.uint8).reshape(-1, 4, 2, 32)
    nibbles = (codes[:, :, 0] | (codes[:, :, 1] << 4)).reshape(-1, 128)
    six = _six_bits(sub.astype(np.uint8), suboffset.astype(np.uint8))
    packed = np.concatenate([d.view(np.uint8), offset.view(np.uint8), six, nibbles], axis=1)
    return packed.reshape(*x.shape[:-1], -1)


def _six_bits(scales: UInt8, offsets: UInt8) -> UInt8:
    """Eight 6-bit scales and offsets in 12 bytes; the last four of each fill the spare bits of the
    others."""
    first = (scales[:, :4] & 63) | ((scales[:, 4:] >> 4) << 6)
    second = (offsets[:, :4] & 63) | ((offsets[:, 4:] >> 4) << 6)
    rest = (scales[:, 4:] & 15) | ((offsets[:, 4:] & 15) << 4)
    return np.concatenate([first, second, rest], axis=1)
