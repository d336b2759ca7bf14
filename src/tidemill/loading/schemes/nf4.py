"""bitsandbytes' 4-bit weights (Dettmers et al. 2023): a codebook of 16 values, nf4 or fp4.

Per matrix: weight, bytes of two codes, the first in the high nibble [n * k / 2, 1]; absmax, a scale
per block of values in row order; quant_map, the codebook; quant_state, JSON as bytes. With double
quantization absmax holds codes of a second codebook (nested_quant_map), scaled per block
(nested_absmax), plus an offset.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error
from tidemill.loading.jsonfile import parse_object
from tidemill.loading.mapped import StoredTensor
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

_STATES = (".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4")
_SUFFIXES = (
    ".weight.quant_map", ".weight", ".weight.absmax", ".weight.nested_absmax",
    ".weight.nested_quant_map", *_STATES,
)  # fmt: skip
_MAX_STATE_BYTES = 65536


def scheme() -> Scheme:
    """The scheme; its tensors hold all settings."""
    return Scheme("bitsandbytes 4-bit", _SUFFIXES, _weight)


def _state(parts: Stored) -> dict[str, Any]:
    found = next((parts[s] for s in _STATES if s in parts), None)
    if found is None:
        raise model_file_error("its quant_state is missing", param="quant_state")
    if found.nbytes > _MAX_STATE_BYTES:
        raise model_file_error(f"{found.name} has {found.nbytes} bytes", param=found.name)
    return parse_object(bytes(found.view), found.name)


def _weight(name: str, parts: Stored) -> SchemeWeight:
    state = _state(parts)
    weight, absmax = part(parts, ".weight"), part(parts, ".weight.absmax")
    codebook = parts[".weight.quant_map"]
    shape = state.get("shape")
    if not isinstance(shape, list) or len(shape) != 2:
        raise model_file_error("quant_state names no shape of two extents", param="quant_state")
    n, k = (checked_integer("quant_state.shape", v, 1, MAX_SIZE) for v in shape)
    block = checked_integer("quant_state.blocksize", state.get("blocksize"), 1, 2**20)
    count = n * k
    check_type(weight, "U8")
    check_type(codebook, "F32")
    check_shape(codebook, (16,))
    check_shape(absmax, (-(-count // block),))
    if math.prod(weight.shape) != -(-count // 2):
        raise model_file_error(f"{weight.name} has {weight.nbytes} bytes for {n} x {k} codes")
    scales = _scales(state, parts, absmax)

    def read() -> Float32:
        codes = np.frombuffer(weight.view, np.uint8)
        table = codebook.array().astype(np.float32)
        values = np.stack([table[codes >> 4], table[codes & 15]], axis=1).reshape(-1)[:count]
        whole = count // block * block
        factors = scales()
        values[:whole].reshape(-1, block)[...] *= factors[: whole // block, None]
        values[whole:] *= factors[-1]
        return values.reshape(n, k)

    label = "NF4" if _STATES[0] in parts else "FP4"
    return SchemeWeight(name, label, (n, k), tuple(parts.values()), "F32", read)


def _scales(state: dict[str, Any], parts: Stored, absmax: StoredTensor) -> Any:
    """A function that returns the scales, float32 [blocks]."""
    if absmax.dtype != "U8":
        check_type(absmax, "F32")
        return lambda: floats(absmax)
    inner, table = part(parts, ".weight.nested_absmax"), part(parts, ".weight.nested_quant_map")
    block = checked_integer("quant_state.nested_blocksize", state.get("nested_blocksize"), 1, 2**20)
    offset = state.get("nested_offset")
    if not isinstance(offset, int | float) or isinstance(offset, bool) or not math.isfinite(offset):
        raise model_file_error("quant_state.nested_offset must be a number", param="quant_state")
    count = math.prod(absmax.shape)
    check_shape(inner, (-(-count // block),))
    check_shape(table, (256,))

    def read() -> Float32:
        codes = np.frombuffer(absmax.view, np.uint8)
        factors = np.repeat(floats(inner), block)[:count]
        found: Float32 = floats(table)[codes] * factors + np.float32(offset)
        return found

    return read
