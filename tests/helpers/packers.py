"""Quantized weights written from the formats' descriptions, with their exact values.

Each packer takes a float32 matrix [n, k] and gives (tensors by ending, the values they stand for).
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Tensors = dict[str, NDArray[Any]]


def fields_to_words(fields: NDArray[np.integer], bits: int) -> NDArray[np.int32]:
    """Fields [rows, m] as 32-bit words [rows, m * bits / 32], bit by bit, lowest first."""
    flags = (fields[:, :, None].astype(np.int64) >> np.arange(bits)) & 1
    stream = flags.reshape(len(fields), -1, 32)
    return (stream << np.arange(32)).sum(-1).astype(np.uint32).view(np.int32)


def quantize_groups(
    values: Float32, bits: int, groups: NDArray[np.int64], sym: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], Float32]:
    """(codes [n, k], zeros [n, groups], scales [n, groups] that are float16)."""
    n, _ = values.shape
    count, top = int(groups.max()) + 1, 2**bits - 1
    scales, zeros = np.zeros((n, count), np.float32), np.zeros((n, count), np.int64)
    for g in range(count):
        part = values[:, groups == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if sym:
            high = np.maximum(np.abs(low), high)
            low = -high
        scale = ((high - low) / top).astype(np.float16).astype(np.float32)
        scales[:, g] = np.where(scale == 0, 1, scale)
        zeros[:, g] = (top + 1) // 2 if sym else np.clip(np.rint(-low / scales[:, g]), 0, top)
    codes = np.rint(values / scales[:, groups]).astype(np.int64) + zeros[:, groups]
    return codes.clip(0, top), zeros, scales


def gptq(
    values: Float32, bits: int, group: int, *, sym: bool = True, act_order: bool = False,
    version: int = 1, seed: int = 0,
) -> tuple[Tensors, Float32]:  # fmt: skip
    k = values.shape[1]
    group = k if group == -1 else group
    index = np.arange(k) // group
    if act_order:
        index = np.random.default_rng(seed).permutation(index)
    codes, zeros, scales = quantize_groups(values, bits, index, sym)
    stored = (zeros - 1) % 2**bits if version == 1 else zeros
    tensors = {
        ".qweight": np.ascontiguousarray(fields_to_words(codes, bits).T),
        ".qzeros": fields_to_words(np.ascontiguousarray(stored.T), bits),
        ".scales": np.ascontiguousarray(scales.T).astype(np.float16),
        ".g_idx": index.astype(np.int32),
    }
    return tensors, scales[:, index] * (codes - zeros[:, index]).astype(np.float32)


def awq(values: Float32, group: int) -> tuple[Tensors, Float32]:
    index = np.arange(values.shape[1]) // group
    codes, zeros, scales = quantize_groups(values, 4, index, False)

    def ordered(columns: NDArray[np.int64]) -> NDArray[np.int32]:
        by_eight = columns.reshape(len(columns), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]]
        return fields_to_words(by_eight.reshape(len(columns), -1), 4)

    tensors = {
        ".qweight": ordered(np.ascontiguousarray(codes.T)),
        ".qzeros": ordered(np.ascontiguousarray(zeros.T)),
        ".scales": np.ascontiguousarray(scales.T).astype(np.float16),
    }
    return tensors, scales[:, index] * (codes - zeros[:, index]).astype(np.float32)


def pack_quantized(
    values: Float32, bits: int, group: int, *, sym: bool = True
) -> tuple[Tensors, Float32]:
    """compressed-tensors' pack-quantized; group -1 is a scale per row."""
    n, k = values.shape
    group = k if group == -1 else group
    index = np.arange(k) // group
    codes, zeros, scales = quantize_groups(values, bits, index, sym)
    tensors: Tensors = {
        ".weight_packed": fields_to_words(codes, bits),
        ".weight_scale": scales.astype(np.float16),
        ".weight_shape": np.array([n, k], np.int64),
    }
    if not sym:
        tensors[".weight_zero_point"] = np.ascontiguousarray(
            fields_to_words(np.ascontiguousarray(zeros.T), bits).T
        )
    return tensors, scales[:, index] * (codes - zeros[:, index]).astype(np.float32)


def int8_rows(values: Float32) -> tuple[Tensors, Float32]:
    """compressed-tensors' int-quantized: a scale per row."""
    scales = (np.abs(values).max(1, keepdims=True) / 127).astype(np.float16)
    q = np.rint(values / scales.astype(np.float32)).clip(-128, 127).astype(np.int8)
    return {".weight": q, ".weight_scale": scales}, scales.astype(np.float32) * q.astype(np.float32)


def bnb_int8(values: Float32) -> tuple[Tensors, Float32]:
    scb = np.abs(values).max(1).astype(np.float32)
    q = np.rint(values * (127 / scb[:, None])).astype(np.int8)
    exact = q.astype(np.float64) * scb[:, None].astype(np.float64) / 127
    return {".weight": q, ".SCB": scb}, exact.astype(np.float32)


# The 16 quantiles of a normal distribution that NF4 is defined by (Dettmers et al. 2023, appendix).
NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
     -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
     0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1.0], np.float32,
)  # fmt: skip


def nf4(values: Float32, block: int = 64, nested: bool = False) -> tuple[Tensors, Float32]:
    n, k = values.shape
    flat = values.reshape(-1, block)
    absmax = np.abs(flat).max(1).astype(np.float32)
    state: dict[str, Any] = {
        "quant_type": "nf4", "blocksize": block, "dtype": "float32", "shape": [n, k],
    }  # fmt: skip
    tensors: Tensors = {".weight.quant_map": NF4}
    if nested:
        table = np.linspace(-1, 1, 256).astype(np.float32)
        offset = float(absmax.mean())
        centred = np.pad(absmax - np.float32(offset), (0, -len(absmax) % 256)).reshape(-1, 256)
        inner = np.abs(centred).max(1).astype(np.float32)
        codes = np.abs(centred[..., None] / inner[:, None, None] - table).argmin(-1)
        codes = codes.reshape(-1)[: len(absmax)].astype(np.uint8)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        tensors |= {
            ".weight.absmax": codes,
            ".weight.nested_absmax": inner,
            ".weight.nested_quant_map": table,
        }
        absmax = table[codes] * np.repeat(inner, 256)[: len(codes)] + np.float32(offset)
    else:
        tensors[".weight.absmax"] = absmax
    picked = np.abs(flat[..., None] / absmax[:, None, None] - NF4).argmin(-1).astype(np.uint8)
    pairs = picked.reshape(-1, 2)
    tensors[".weight"] = ((pairs[:, 0] << 4) | pairs[:, 1]).reshape(-1, 1)
    text = json.dumps(state).encode()
    tensors[".weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(text, np.uint8)
    return tensors, (NF4[picked] * absmax[:, None]).reshape(n, k)


# HQQ's packings: a word's type, the places of its fields.
_HQQ = {
    8: ("8bit_u8", np.uint8, (0,)),
    4: ("4bit_u8", np.uint8, (4, 0)),
    3: ("3bit_32", np.int32, (27, 24, 21, 18, 15, 12, 9, 6, 3, 0)),
    2: ("2bit_u8", np.uint8, (6, 4, 2, 0)),
    1: ("1bit_u8", np.uint8, (7, 6, 5, 4, 3, 2, 1, 0)),
}


def hqq(
    values: Float32, bits: int, group: int, axis: int, dtype: str, view_as_float: bool = False
) -> tuple[dict[str, Any], Float32]:
    """Zero points between integers, as HQQ's search leaves them; arithmetic by torch."""
    import torch

    packing, word, places = _HQQ[bits]
    grouped = values.reshape(-1, group) if axis == 1 else values.reshape(group, -1)
    low, high = grouped.min(axis, keepdims=True), grouped.max(axis, keepdims=True)
    kind = getattr(torch, dtype)
    scale = torch.from_numpy((high - low) / (2**bits - 1)).to(kind)
    zero = torch.from_numpy(-low / scale.float().numpy()).to(kind)
    steps = np.rint(grouped / scale.float().numpy() + zero.float().numpy())
    codes = steps.clip(0, 2**bits - 1).astype(np.int64)
    held = -(-len(codes) // len(places))
    padded = np.concatenate([codes, np.zeros((held * len(places) - len(codes), codes.shape[1]))])
    parts = padded.astype(np.int64).reshape(len(places), held, -1)
    words = sum(part << place for part, place in zip(parts, places, strict=True))
    stored = torch.from_numpy(np.asarray(words).astype(word))
    exact = ((torch.from_numpy(codes).to(kind) - zero) * scale).reshape(values.shape)

    def text(value: str) -> Any:
        return torch.tensor(list(value.encode()), dtype=torch.uint8)

    def number(value: int, kind: Any = torch.int32) -> Any:
        return torch.tensor(value, dtype=kind)

    tensors = {
        ".W_q": stored.view(kind) if view_as_float else stored, ".scale": scale, ".zero": zero,
        ".nbits": number(bits), ".group_size": number(group), ".axis": number(axis),
        ".shape": torch.tensor(values.shape), ".packing": text(packing),
        ".compute_dtype": text(f"torch.{dtype}"), ".unpack_view_dtype": text("torch.uint8"),
        **{f".{flag}": number(1, torch.uint8) for flag in
           ("channel_wise", "optimize", "encoded_state_dict", "stores_quant_config")},
        **{f".{flag}": number(0, torch.uint8) for flag in
           ("quant_scale", "quant_zero", "offload_meta", "round_zero")},
        ".view_as_float": number(view_as_float, torch.uint8),
    }  # fmt: skip
    return tensors, exact.float().numpy()
