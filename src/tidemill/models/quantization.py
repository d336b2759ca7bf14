"""GGUF's block quantization in numpy: the reference that packed kernels are compared with.

Layouts and rounding follow ggml's reference functions as described by the GGUF specification. A row
is a whole number of blocks of 32 values:

- Q8_0, 34 bytes: float16 d, then 32 int8 q; value = d * q, with d = max|x| / 127.
- Q4_0, 18 bytes: float16 d, then 16 bytes; byte j holds q[j] in its low and q[j + 16] in its high
  nibble; value = d * (q - 8), with d = x / -8 for the x of largest magnitude.

INT8 is not a GGUF type: a row is its float32 scale d, then k int8 q; value = d * q, with d = max|x|
/ 127 over the row, an output channel. Activations are rounded to int8 as well, with a scale per
token (vector-wise quantization: Dettmers et al., LLM.int8(), 2022, section 3, without its
outliers).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.models import tensors as names
from tidemill.models.blocks import DECODERS, dequantize
from tidemill.models.k_quantize import quantize_q4_k, quantize_q6_k
from tidemill.models.tensors import RawTensor, TensorHeader

BLOCK = 32
FLOAT_TYPES = ("F32", "F16", "BF16")
QUANTIZED_TYPES = ("Q8_0", "Q4_0", "INT8")

Float32 = NDArray[np.float32]
UInt8 = NDArray[np.uint8]


def stored_type(name: str, tensor: RawTensor | TensorHeader, quantize: str) -> str:
    """Type a tensor has in memory under the `--quantize` option.

    Under ``none`` it is the stored type, or for a type that no kernel multiplies the type it is
    rounded to. Otherwise only float matrices whose rows are whole blocks are requantized. Routers
    and position embeddings are not, because they are small and sensitive. Nor are per-layer
    embeddings: a step reads only a few of their rows, from the file. Under ``q4_0`` the embedding
    and the output projection take Q8_0: they are the most sensitive matrices and a small share of
    the bytes.
    """
    block = 1 if quantize == "int8" else BLOCK
    matrix = len(tensor.shape) == 2 and tensor.shape[1] % block == 0
    kept = name in (names.POSITIONS, names.LAYER_INPUTS)
    kept = kept or name.endswith((".router.weight", ".shared_gate.weight"))
    if quantize == "none":
        return tensor.rounded or tensor.dtype
    if tensor.dtype not in FLOAT_TYPES or not matrix or kept:
        return tensor.dtype
    if quantize == "q4_0" and name in (names.EMBED, names.LM_HEAD):
        return "Q8_0"
    return quantize.upper()


def stays_wide(name: str) -> bool:
    """Whether a matrix is held and multiplied as float32 when no smaller type represents all its
    values. It applies to the projection of a head's queries to latents. Its axes are exchanged,
    which no quantized type survives, and it is a small part of a model."""
    return ".attn.k_up." in name


def _round_half_away(x: Float32) -> Float32:
    return np.trunc(x + np.copysign(np.float32(0.5), x))


def quantize_q8_0(x: Float32) -> UInt8:
    """float32 [..., k] to uint8 [..., k / 32 * 34]."""
    blocks = x.reshape(-1, BLOCK)
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    q = _round_half_away(blocks * inverse).astype(np.int8)
    packed = np.concatenate([d.astype(np.float16).view(np.uint8), q.view(np.uint8)], axis=1)
    return packed.reshape(*x.shape[:-1], -1)


def quantize_q4_0(x: Float32) -> UInt8:
    """float32 [..., k] to uint8 [..., k / 32 * 18]."""
    blocks = x.reshape(-1, BLOCK)
    at = np.abs(blocks).argmax(axis=1, keepdims=True)
    d = np.take_along_axis(blocks, at, axis=1) / np.float32(-8)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    q = np.trunc(blocks * inverse + np.float32(8.5)).clip(0, 15).astype(np.uint8)
    nibbles = q[:, :16] | (q[:, 16:] << 4)
    packed = np.concatenate([d.astype(np.float16).view(np.uint8), nibbles], axis=1)
    return packed.reshape(*x.shape[:-1], -1)


def quantize_int8(x: Float32) -> UInt8:
    """float32 [n, k] to uint8 [n, 4 + k]."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    return int8_rows(d, _round_half_away(x * inverse))


def int8_rows(d: Float32, q: NDArray[Any]) -> UInt8:
    """Scales float32 [n, 1] and integers [n, k] from -128 to 127 as INT8's uint8 [n, 4 + k]."""
    heads = np.ascontiguousarray(d, np.float32).view(np.uint8)
    return np.concatenate([heads, q.astype(np.int8).view(np.uint8)], axis=1)


def _int8_values(raw: UInt8, rows: int) -> Float32:
    stored = raw.reshape(rows, -1)
    return stored[:, :4].copy().view(np.float32) * stored[:, 4:].view(np.int8)


def to_float32(tensor: RawTensor) -> Float32:
    """Any tensor's values as float32 [shape] (exact: every stored type embeds in float32)."""
    raw = np.frombuffer(tensor.data, dtype=np.uint8)
    if tensor.dtype == "F32":
        values = raw.view(np.float32)
    elif tensor.dtype == "F16":
        values = raw.view(np.float16).astype(np.float32)
    elif tensor.dtype == "BF16":
        values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif tensor.dtype == "INT8":
        values = _int8_values(raw, tensor.shape[0])
    elif tensor.dtype in DECODERS:
        values = dequantize(tensor.dtype, raw)
    else:
        raise ValueError(f"unknown tensor type {tensor.dtype!r}")
    return values.reshape(tensor.shape)


QUANTIZERS = {
    "Q8_0": quantize_q8_0,
    "Q4_0": quantize_q4_0,
    "Q4_K": quantize_q4_k,
    "Q6_K": quantize_q6_k,
    "INT8": quantize_int8,
}


def convert(tensor: RawTensor, dtype: str) -> RawTensor:
    """The tensor requantized to a quantized `dtype`, or unchanged when it has that type already."""
    if tensor.dtype == dtype:
        return tensor
    packed = np.ascontiguousarray(QUANTIZERS[dtype](to_float32(tensor)))
    return RawTensor(dtype, tensor.shape, packed.data.cast("B"))
