"""Weights times scales in the matrix's own layout: fp8 with tensor, row or block scales, int8 rows.

DeepSeek's and transformers' ``fp8`` (weight_scale_inv per block of 128 x 128, or one weight_scale),
FBGEMM's rows, bitsandbytes' LLM.int8 (SCB, 127 times each row's scale).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import Float32
from tidemill.loading.schemes.base import (
    Integers,
    Scheme,
    SchemeWeight,
    Stored,
    check_shape,
    check_type,
    floats,
    small_float_values,
)
from tidemill.models.small_floats import SMALL_FLOATS

_INPUT_SIDE = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".input_scale_ub")


def fp8(config: Mapping[str, Any]) -> Scheme:
    """Read a ``quantization_config`` of method fp8 or fbgemm_fp8."""
    block = config.get("weight_block_size")
    if block is not None and not (
        isinstance(block, list) and len(block) == 2
        and all(isinstance(b, int) and 0 < b < 2**20 for b in block)
    ):  # fmt: skip
        raise model_file_error(
            "quantization_config.weight_block_size must be two positive integers",
            param="quantization_config.weight_block_size",
        )
    blocks = (block[0], block[1]) if block else None

    def build(name: str, parts: Stored) -> SchemeWeight | None:
        scale = parts.get(".weight_scale_inv", parts.get(".weight_scale"))
        if parts[".weight"].dtype not in SMALL_FLOATS or scale is None:
            return None  # a float weight, or one without a scale
        return fp8_weight(name, parts[".weight"], scale, blocks, tuple(parts.values()))

    suffixes = (".weight", ".weight_scale_inv", ".weight_scale")
    return Scheme("FP8", suffixes, build, _INPUT_SIDE)


def fp8_weight(
    name: str,
    weight: StoredTensor,
    scale: StoredTensor,
    blocks: tuple[int, int] | None,
    parts: tuple[StoredTensor, ...],
) -> SchemeWeight:
    """An fp8 matrix and its scale: one number, one per row, or one per block."""
    check_type(weight, *SMALL_FLOATS)
    if len(weight.shape) != 2:
        raise model_file_error(f"{weight.name} has shape {list(weight.shape)}")
    n, k = weight.shape
    if blocks is not None:
        check_shape(scale, (-(-n // blocks[0]), -(-k // blocks[1])))
    elif scale.shape not in ((), (1,), (1, 1), (n,), (n, 1)):
        raise model_file_error(
            f"{scale.name} has shape {list(scale.shape)}, which fits no row or tensor scale of "
            f"{list(weight.shape)}",
            param=scale.name,
        )

    def read() -> Float32:
        factors = floats(scale)
        if blocks is None:
            wide = factors.reshape(-1, 1)
        else:
            wide = np.repeat(np.repeat(factors, blocks[0], 0)[:n], blocks[1], 1)[:, :k]
        return small_float_values(weight) * wide

    # The product of an 8-bit float with four significant bits and a power of two is a bfloat16
    # value.
    exact = "BF16" if scale.dtype == "F8_E8M0" else "F32"
    return SchemeWeight(name, "FP8", weight.shape, parts, exact, read)


def int8(_config: Mapping[str, Any]) -> Scheme:
    """bitsandbytes' LLM.int8 (Dettmers et al. 2022): value = int8 * SCB / 127."""
    return Scheme("bitsandbytes int8", (".weight", ".SCB", ".weight_format"), _int8_weight)


def _int8_weight(name: str, parts: Stored) -> SchemeWeight | None:
    weight, scale = parts[".weight"], parts.get(".SCB")
    if weight.dtype != "I8" or scale is None or len(weight.shape) != 2:
        return None
    n, k = weight.shape
    check_shape(scale, (n,))

    def read() -> Float32:
        # In the reference's order, each product rounded.
        rows = weight.array().astype(np.float32) * floats(scale)[:, None]
        return rows * np.float32(1 / 127)

    return SchemeWeight(name, "BNB-INT8", (n, k), tuple(parts.values()), "F32", read)


def int8_rows(
    name: str,
    weight: StoredTensor,
    scale: StoredTensor,
    zero: StoredTensor | None,
    parts: tuple[StoredTensor, ...],
    rounded_inputs: bool,
) -> SchemeWeight:
    """int8 [n, k] with a scale (and zero point) per tensor, per row, or per group of columns.

    `rounded_inputs`: the matrix is meant for int8 activations with a scale per token, as in the
    kernel with one scale per row.
    """
    check_type(weight, "I8")
    if len(weight.shape) != 2:
        raise model_file_error(f"{weight.name} has shape {list(weight.shape)}")
    n, k = weight.shape
    groups = scale.shape[1] if len(scale.shape) == 2 else 1
    if scale.shape not in ((), (1,), (n,), (1, 1), (n, groups)) or not groups or k % groups:
        raise model_file_error(
            f"{scale.name} has shape {list(scale.shape)}, which does not fit {list(weight.shape)}",
            param=scale.name,
        )
    if zero is not None:
        check_shape(zero, scale.shape)

    def read() -> Integers:
        q = weight.array().astype(np.int16)
        factors = np.broadcast_to(floats(scale).reshape(-1, groups), (n, groups))
        if zero is not None:
            taken = zero.array().astype(np.int16).reshape(-1, groups)
            q = q.reshape(n, groups, -1) - np.broadcast_to(taken, (n, groups))[:, :, None]
        return Integers(q.reshape(n, k), factors)

    exact = "F32" if k // groups % 32 else "Q8_0"
    if rounded_inputs and groups == 1 and zero is None:
        exact = "INT8"
    return SchemeWeight(name, "INT8", (n, k), parts, exact, read)
