"""GPTQ checkpoints (Frantar et al. 2023) as AutoGPTQ, GPTQModel and AutoRound write them.

Per matrix [n, k]: qweight, 32-bit words down the columns [k * bits / 32, n]; qzeros, words along
the rows [groups, n * bits / 32]; scales [groups, n]; g_idx [k], the group of each column. In the
first format a zero point is stored minus one, modulo 2^bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.schemes.base import (
    Integers,
    Scheme,
    SchemeWeight,
    Stored,
    bits_of,
    check_shape,
    check_type,
    floats,
    holder,
    part,
    unpack,
)

_BITS = (2, 3, 4, 8)
_FORMATS = {"gptq": 1, "gptq_v2": 0}  # added to a stored zero point


def scheme(config: Mapping[str, Any]) -> Scheme:
    """Read a ``quantization_config`` of method gptq."""
    bits = bits_of(config, _BITS, "bits")
    name = config.get("checkpoint_format") or "gptq"
    if name not in _FORMATS:
        raise unsupported(
            "quantization_config.checkpoint_format",
            f"GPTQ checkpoint_format {name!r} is not read; {' and '.join(_FORMATS)} are",
        )
    added, sym = _FORMATS[name], config.get("sym") is not False
    act_order = bool(config.get("desc_act"))
    by_module = _check_modules(config.get("dynamic"), {"sym": sym, "desc_act": act_order})

    def build(weight: str, parts: Stored) -> SchemeWeight:
        own = _stored_bits(parts) if by_module else bits
        return _weight(weight, parts, own, added, sym, act_order)

    return Scheme(f"GPTQ {bits}-bit", (".qweight", ".qzeros", ".scales", ".g_idx"), build)


def _check_modules(dynamic: object, common: Mapping[str, bool]) -> bool:
    """Check the per-module settings, which GPTQModel's configs give as name patterns. The patterns
    are not evaluated: settings that may differ are derived from the tensors' shapes."""
    key = "quantization_config.dynamic"
    if not dynamic:
        return False
    if not isinstance(dynamic, dict) or not all(
        isinstance(own, dict) or own is None for own in dynamic.values()
    ):
        raise model_file_error(f"{key} must map patterns to objects", param=key)
    for own in dynamic.values():
        for name, value in (own or {}).items():
            if name in common and value is not common[name]:
                raise unsupported(
                    key, f"{key} sets {name} to {value!r} for some modules and not for all: bits "
                    "and group_size alone may differ",
                )  # fmt: skip
            if name not in (*common, "bits", "group_size", *_MAKING):
                raise unsupported(key, f"{key} sets {str(name)[:40]!r}, which is not known")
    return True


# Settings of the quantization run that do not affect the result's format.
_MAKING = ("mse", "damp_percent", "static_groups", "act_group_aware")


def _stored_bits(parts: Stored) -> int:
    qzeros, scales = part(parts, ".qzeros"), part(parts, ".scales")
    bits = qzeros.shape[-1] * 32 / scales.shape[-1] if qzeros.shape and scales.nbytes else 0
    if bits not in _BITS:
        raise model_file_error(
            f"{qzeros.name} has shape {list(qzeros.shape)} for scales of {list(scales.shape)}: "
            f"zero points of {', '.join(map(str, _BITS))} bits are read",
            param=qzeros.name,
        )
    return int(bits)


def _weight(
    name: str, parts: Stored, bits: int, added: int, sym: bool, act_order: bool
) -> SchemeWeight:
    qweight, qzeros, scales = (part(parts, s) for s in (".qweight", ".qzeros", ".scales"))
    check_type(qweight, "I32", "U32")
    check_type(qzeros, "I32", "U32")
    if len(qweight.shape) != 2 or qweight.shape[0] * 32 % bits or len(scales.shape) != 2:
        raise model_file_error(f"{qweight.name} has shape {list(qweight.shape)}")
    k, n = qweight.shape[0] * 32 // bits, qweight.shape[1]
    groups = scales.shape[0]
    check_shape(scales, (groups, n))
    check_shape(qzeros, (groups, n * bits // 32))
    g_idx = parts.get(".g_idx")
    if g_idx is not None:
        check_shape(g_idx, (k,))
        check_type(g_idx, "I32")
    if not groups or (g_idx is None and k % groups):
        raise model_file_error(f"{scales.name}: {groups} groups do not divide {k} columns")
    ordered = not act_order and k % groups == 0

    def read() -> Integers:
        words = np.ascontiguousarray(qweight.array().T)
        q = unpack(words, bits)
        zeros = (unpack(qzeros.array(), bits).astype(np.int16) + added) & (2**bits - 1)
        regular = np.repeat(np.arange(groups), -(-k // groups))[:k]
        of = regular if g_idx is None else g_idx.array().astype(np.int64)
        if of.size and (of.min() < 0 or of.max() >= groups):
            raise model_file_error(
                f"{name}: g_idx names group {of.max()} of {groups}", param=parts[".g_idx"].name
            )
        integers = q.astype(np.int16)
        np.subtract(integers, zeros.T[:, of], out=integers)
        in_order = k % groups == 0 and np.array_equal(of, regular)
        return Integers(integers, floats(scales).T, None if in_order else of)

    # A symmetric zero point is half the range; other zero points need one more bit.
    exact = holder(k, k // groups, bits if sym else bits + 1) if ordered else "F32"
    if not sym and bits == 8:
        exact = "Q8_0" if ordered and exact != "F32" else "F32"
    return SchemeWeight(name, f"GPTQ-{bits}", (n, k), tuple(parts.values()), exact, read)
