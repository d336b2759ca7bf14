"""HQQ checkpoints (Badri and Shaji 2023) as transformers and hqq save them.

Per matrix [n, k]: W_q, its integers in groups of values, [groups, size] along the rows (axis 1) or
[size, groups] across them (axis 0), packed so that a word's fields are rows at a fixed distance;
scale and zero, a number per group; and each setting as a small tensor (text as bytes). value = (q -
zero) * scale, each step rounded to the wider of its operands' types, q in compute_dtype. A zero
point is any number, so no type of few bits holds the values; mostly one of 16 bits does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.places import Float32
from tidemill.loading.schemes.base import (
    Scheme,
    SchemeWeight,
    Stored,
    check_shape,
    check_type,
    floats,
    part,
)
from tidemill.models.config import MAX_SIZE, checked_integer
from tidemill.models.small_floats import rounded_bf16

_SETTINGS = (
    ".nbits", ".group_size", ".shape", ".axis", ".packing", ".compute_dtype", ".view_as_float",
    ".quant_scale", ".quant_zero",
)  # fmt: skip
# Settings of the quantization run and of storage that do not affect the values.
_IDLE = (
    ".unpack_view_dtype", ".offload_meta", ".encoded_state_dict", ".stores_quant_config",
    ".channel_wise", ".optimize", ".round_zero",
)  # fmt: skip
_SUFFIXES = (".W_q", ".scale", ".zero", *_SETTINGS, ".zero_scale", *_IDLE)
# Packing -> (word type, shifts of its fields, bits per field), the first rows' field first.
_PACKINGS: dict[str, tuple[type[np.signedinteger | np.unsignedinteger], range, int]] = {
    "8bit_u8": (np.uint8, range(0, 1), 8),
    "4bit_u8": (np.uint8, range(4, -1, -4), 4),
    "3bit_32": (np.int32, range(27, -1, -3), 3),
    "2bit_u8": (np.uint8, range(6, -1, -2), 2),
    "1bit_u8": (np.uint8, range(7, -1, -1), 1),
}
_DTYPES = {"torch.float16": "F16", "torch.bfloat16": "BF16", "torch.float32": "F32"}
_MAX_TEXT = 64


def scheme() -> Scheme:
    """The scheme; its tensors hold all settings."""
    return Scheme("HQQ", _SUFFIXES, _weight)


def _number(parts: Stored, suffix: str, low: int, high: int) -> int:
    tensor = part(parts, suffix)
    check_type(tensor, "I32", "I64", "U8")
    if tensor.shape not in ((), (1,)):
        raise model_file_error(f"{tensor.name} must be one number", param=tensor.name)
    return checked_integer(tensor.name, int(tensor.array().reshape(())), low, high)


def _text(parts: Stored, suffix: str, known: tuple[str, ...]) -> str:
    tensor = part(parts, suffix)
    check_type(tensor, "U8")
    text = bytes(tensor.view[:_MAX_TEXT]).decode("ascii", "replace")
    if text not in known:
        raise unsupported(tensor.name, f"{tensor.name} is {text!r}; {', '.join(known)} are read")
    return text


def _flag(parts: Stored, suffix: str) -> bool:
    return suffix in parts and bool(_number(parts, suffix, 0, 1))


def _extents(parts: Stored) -> tuple[int, int]:
    tensor = part(parts, ".shape")
    check_type(tensor, "I32", "I64")
    check_shape(tensor, (2,))
    n, k = (checked_integer(tensor.name, int(v), 1, MAX_SIZE) for v in tensor.array().tolist())
    return n, k


def _weight(name: str, parts: Stored) -> SchemeWeight:
    if ".zero_scale" in parts or _flag(parts, ".quant_scale") or _flag(parts, ".quant_zero"):
        raise unsupported(
            "quantization_config",
            "scales or zero points that are quantized or offloaded are not read; quantize the "
            "model without them (HQQ no longer writes them)",
        )
    n, k = _extents(parts)
    size = _number(parts, ".group_size", 1, n * k)
    down = _number(parts, ".axis", 0, 1) == 0
    if n * k % size:
        raise model_file_error(f"groups of {size} do not divide {n} x {k} values")
    rows, columns = (size, n * k // size) if down else (n * k // size, size)
    packing = _text(parts, ".packing", tuple(_PACKINGS))
    dtype = _DTYPES[_text(parts, ".compute_dtype", tuple(_DTYPES))]
    word, places, _ = _PACKINGS[packing]
    stored = part(parts, ".W_q")
    if not _flag(parts, ".view_as_float"):
        check_type(stored, "I32" if word is np.int32 else "U8")
    held = -(-rows // len(places))
    if stored.nbytes != held * columns * np.dtype(word).itemsize:
        raise model_file_error(
            f"{stored.name} has {stored.nbytes} bytes for {rows} x {columns} integers", param=name
        )
    scale, zero = part(parts, ".scale"), part(parts, ".zero")
    first = _wider(dtype, zero.dtype)
    second = _wider(first, scale.dtype)
    groups = (1, columns) if down else (rows, 1)
    for tensor in (scale, zero):
        check_type(tensor, *_ROUNDED)
        if math.prod(tensor.shape) != math.prod(groups):
            check_shape(tensor, groups)

    def read() -> Float32:
        words = np.frombuffer(stored.view, word).reshape(held, columns)
        q = unpacked(words, packing)[:rows].astype(np.float32)
        centred = _ROUNDED[first](q - floats(zero).reshape(groups))
        return _ROUNDED[second](centred * floats(scale).reshape(groups)).reshape(n, k)

    return SchemeWeight(name, "HQQ", (n, k), tuple(parts.values()), second, read)


def _wider(one: str, other: str) -> str:
    return one if one == other else "F32"


def unpacked(words: NDArray[np.generic], packing: str) -> NDArray[np.int32]:
    """Words [rows, columns] as integers [fields * rows, columns]."""
    _, places, bits = _PACKINGS[packing]
    wide = words.astype(np.int32)
    return np.concatenate([(wide >> place) & (2**bits - 1) for place in places])


def _half(values: Float32) -> Float32:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


_ROUNDED: dict[str, Callable[[Float32], Float32]] = {
    "F16": _half,
    "BF16": rounded_bf16,
    "F32": lambda values: values,
}
