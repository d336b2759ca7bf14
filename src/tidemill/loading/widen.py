"""Quantized types that are read by widening: executors never see them.

llama.cpp's quantizer gives the output projection of a Q4_0 file (or the embedding, when tied) the
type Q6_K, so a Q4_0 file from elsewhere holds one such tensor. It becomes F16, which keeps 11 of
the products' bits; `--quantize` then applies to it as to any float matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tidemill.models.tensors import RawTensor

_Q6_K_BYTES = 210
_VALUES = 256


def _dequantize_q6_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Blocks of 256 values: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales (one per
    16 values), float16 d; value = d * scale * (q - 32). Layout: ggml's reference function."""
    blocks = data.reshape(-1, _Q6_K_BYTES)
    count = len(blocks)
    low = blocks[:, :128].reshape(count, 2, 1, 2, 32)
    high = blocks[:, 128:192].reshape(count, 2, 1, 32)
    # Per half of 128 values: the low nibbles of 64 bytes, then their high nibbles; the bit pairs of
    # one byte belong to values 32 apart.
    nibbles = (low >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1, 1)) & 15
    pairs = (high >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3
    q = nibbles.reshape(count, 2, 4, 32) | (pairs << 4)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    d = np.ascontiguousarray(blocks[:, 208:]).view(np.float16).astype(np.float32)
    values = q.reshape(count, 16, 16).astype(np.float32) - np.float32(32)
    return (d * scales)[:, :, None] * values


def _q6_k_to_f16(tensor: RawTensor) -> RawTensor:
    data = np.frombuffer(tensor.data, np.uint8)
    half = np.empty(data.size // _Q6_K_BYTES * _VALUES, np.float16)
    # In pieces, so that the float32 values of a large embedding never exist at once.
    piece = 4096
    for start in range(0, data.size // _Q6_K_BYTES, piece):
        values = _dequantize_q6_k(data[start * _Q6_K_BYTES : (start + piece) * _Q6_K_BYTES])
        half[start * _VALUES : start * _VALUES + values.size] = values.reshape(-1)
    return RawTensor("F16", tensor.shape, half.data.cast("B"))


WIDENED: dict[str, Callable[[RawTensor], RawTensor]] = {"Q6_K": _q6_k_to_f16}
