"""Checkpoints of the compressed-tensors library (llm-compressor's): integers packed or plain, fp8.

Layouts, from the library's format description:

- pack-quantized: weight_packed [n, ceil(k * bits / 32)], fields along the rows, lowest first,
  stored with half the range added; weight_scale [n, groups]; weight_shape [2]; optionally
  weight_zero_point [ceil(n * bits / 32), groups], packed along n, and weight_g_idx [k];
- int-quantized: weight int8 [n, k], weight_scale, weight_zero_point;
- float-quantized: weight fp8 [n, k], weight_scale.

int8 weights with a scale per output channel may be meant for dynamic int8 activations with a scale
per token; they are then multiplied in that form. Other activation quantization in a checkpoint is
ignored: activations are computed in more bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.schemes.base import (
    Integers,
    Scheme,
    SchemeWeight,
    Stored,
    check_shape,
    check_type,
    floats,
    holder,
    part,
    unpack,
)
from tidemill.loading.schemes.scaled import fp8_weight, int8_rows
from tidemill.models.config import MAX_SIZE
from tidemill.models.small_floats import SMALL_FLOATS

_FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision",
    "dense",
)  # fmt: skip
_IGNORED = (
    ".input_scale", ".input_zero_point", ".output_scale", ".k_scale", ".v_scale", ".q_scale",
    ".input_observer.min_val", ".input_observer.max_val",
)  # fmt: skip
# The library's defaults, which are also what the kernel with one scale per row computes.
_INPUT_DEFAULTS = {"num_bits": 8, "type": "int", "symmetric": True}
_PER_TOKEN = {**_INPUT_DEFAULTS, "strategy": "token", "dynamic": True}
_SUFFIXES = (".weight_scale", ".weight", ".weight_zero_point")
_PACKED_SUFFIXES = (
    ".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx",
)  # fmt: skip


def schemes(config: Mapping[str, Any]) -> tuple[Scheme, ...]:
    """Read a ``quantization_config`` of method compressed-tensors: the scheme of packed weights,
    then those of unpacked ones."""
    layout = config.get("format") or "dense"
    if layout not in _FORMATS:
        raise unsupported(
            "quantization_config.format",
            f"compressed-tensors format {layout!r} is not read; {', '.join(_FORMATS)} are",
        )
    if config.get("sparsity_config", {}) not in ({}, None) and (
        config["sparsity_config"].get("format", "dense") != "dense"
    ):
        raise unsupported(
            "quantization_config.sparsity_config", "sparse compressed-tensors weights are not read"
        )
    blocks = _block_structure(config)
    rounded = _rounds_inputs(config)

    def plain(name: str, parts: Stored) -> SchemeWeight | None:
        weight, scale = parts.get(".weight"), parts[".weight_scale"]
        if weight is None:
            return None
        whole = tuple(parts.values())
        if weight.dtype in SMALL_FLOATS:
            by_block = blocks if _is_blocked(weight, scale, blocks) else None
            return fp8_weight(name, weight, scale, by_block, whole)
        return int8_rows(name, weight, scale, parts.get(".weight_zero_point"), whole, rounded)

    label = f"compressed-tensors ({layout})"
    return (
        Scheme(label, _PACKED_SUFFIXES, _packed, _IGNORED),
        Scheme(label, _SUFFIXES, plain, _IGNORED),
    )


def _groups(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = config.get("config_groups")
    found = groups.values() if isinstance(groups, dict) else ()
    return [group for group in found if isinstance(group, dict)]


def _rounds_inputs(config: Mapping[str, Any]) -> bool:
    """Whether every group of int8 weights is meant for dynamic int8 activations with a scale per
    token. The modules of a group are given as patterns, which are not evaluated, so groups that
    differ disable it."""
    inputs = [
        group.get("input_activations")
        for group in _groups(config)
        if isinstance(group.get("weights"), dict)
        and (group["weights"].get("num_bits"), group["weights"].get("type", "int")) == (8, "int")
    ]
    return bool(inputs) and all(
        isinstance(given, dict) and {**_INPUT_DEFAULTS, **given}.items() >= _PER_TOKEN.items()
        for given in inputs
    )


def _block_structure(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Block shape of the first group whose weights have a scale per block."""
    for group in _groups(config):
        weights = group.get("weights")
        shape = weights.get("block_structure") if isinstance(weights, dict) else None
        if isinstance(shape, list) and len(shape) == 2 and all(
            isinstance(s, int) and 0 < s < 2**20 for s in shape
        ):  # fmt: skip
            return shape[0], shape[1]
    return None


def _is_blocked(weight: StoredTensor, scale: StoredTensor, blocks: tuple[int, int] | None) -> bool:
    if blocks is None or len(weight.shape) != 2:
        return False
    return scale.shape == (-(-weight.shape[0] // blocks[0]), -(-weight.shape[1] // blocks[1]))


def _packed(name: str, parts: Stored) -> SchemeWeight:
    packed, scale = part(parts, ".weight_packed"), part(parts, ".weight_scale")
    n, k = _logical_shape(part(parts, ".weight_shape"))
    check_type(packed, "I32")
    if len(packed.shape) != 2 or packed.shape[0] != n:
        raise model_file_error(f"{packed.name} has shape {list(packed.shape)} for {n} rows")
    bits = next((b for b in (2, 4, 8) if packed.shape[1] == -(-k * b // 32)), None)
    if bits is None:
        raise unsupported(
            packed.name,
            f"{packed.name}: {packed.shape[1]} words do not hold {k} fields of 2, 4 or 8 bits",
        )
    if len(scale.shape) != 2 or scale.shape[0] != n or not scale.shape[1]:
        raise model_file_error(f"{scale.name} has shape {list(scale.shape)} for {n} rows")
    groups = scale.shape[1]
    zero, g_idx = parts.get(".weight_zero_point"), parts.get(".weight_g_idx")
    if zero is not None:
        check_type(zero, "I32")
        check_shape(zero, (-(-n * bits // 32), groups))
    if g_idx is not None:
        check_shape(g_idx, (k,))
        check_type(g_idx, "I32", "I64")
    elif k % groups:
        raise model_file_error(f"{scale.name}: {groups} groups do not divide {k} columns")
    half = 2 ** (bits - 1)

    def read() -> Integers:
        q = unpack(packed.array(), bits)[:, :k].astype(np.int16)
        regular = np.repeat(np.arange(groups), -(-k // groups))[:k]
        of = regular if g_idx is None else g_idx.array().astype(np.int64)
        if of.size and (of.min() < 0 or of.max() >= groups):
            raise model_file_error(f"{name}: weight_g_idx names group {of.max()} of {groups}")
        if zero is None:
            q -= half
        else:
            zeros = unpack(np.ascontiguousarray(zero.array().T), bits)[:, :n].T.astype(np.int16)
            q -= zeros[:, of]
        in_order = k % groups == 0 and np.array_equal(of, regular)
        return Integers(q, floats(scale), None if in_order else of)

    size = bits if zero is None else min(bits + 1, 8)
    exact = "F32" if g_idx is not None or k % groups else holder(k, k // groups, size)
    return SchemeWeight(name, f"INT{bits}", (n, k), tuple(parts.values()), exact, read)


def _logical_shape(tensor: StoredTensor) -> tuple[int, int]:
    # Sixteen bytes of data, read when the model is opened, because the shape is stored nowhere
    # else.
    check_shape(tensor, (2,))
    check_type(tensor, "I64", "I32")
    n, k = (int(v) for v in tensor.array())
    if not (0 < n <= MAX_SIZE and 0 < k <= MAX_SIZE):
        raise model_file_error(f"{tensor.name} says {n} x {k}", param=tensor.name)
    return n, k
