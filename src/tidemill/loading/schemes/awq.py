"""AWQ checkpoints (Lin et al. 2024) in the layout named gemm.

Per matrix [n, k]: qweight [k, n / 8] and qzeros [groups, n / 8], eight 4-bit fields per 32-bit word
along n, permuted (`_COLUMNS`); scales [groups, n].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.mapped import StoredTensor
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

# Field i of a word, lowest first, holds this one of its eight columns.
_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


def scheme(config: Mapping[str, Any]) -> Scheme:
    """Read a ``quantization_config`` of method awq."""
    bits_of(config, (4,), "bits", "w_bit")
    layout = str(config.get("version") or "gemm").lower()
    if layout != "gemm":
        raise unsupported(
            "quantization_config.version",
            f"AWQ layout {layout!r} is not read (gemm is); write the checkpoint in that one",
        )
    return Scheme("AWQ", (".qweight", ".qzeros", ".scales"), _weight)


def _columns(tensor: StoredTensor) -> NDArray[np.uint8]:
    """uint8 [rows, n]."""
    fields = unpack(tensor.array(), 4)
    places = np.argsort(_COLUMNS)
    ordered = fields.reshape(len(fields), -1, 8)[:, :, places]
    return ordered.reshape(len(fields), -1)


def _weight(name: str, parts: Stored) -> SchemeWeight:
    qweight, qzeros, scales = (part(parts, s) for s in (".qweight", ".qzeros", ".scales"))
    check_type(qweight, "I32", "U32")
    check_type(qzeros, "I32", "U32")
    if len(qweight.shape) != 2 or len(scales.shape) != 2:
        raise model_file_error(f"{qweight.name} has shape {list(qweight.shape)}")
    k, n, groups = qweight.shape[0], qweight.shape[1] * 8, scales.shape[0]
    check_shape(scales, (groups, n))
    check_shape(qzeros, (groups, n // 8))
    if not groups or k % groups:
        raise model_file_error(f"{scales.name}: {groups} groups do not divide {k} columns")

    def read() -> Integers:
        q = np.ascontiguousarray(_columns(qweight).T).astype(np.int16)
        zeros = _columns(qzeros).T.astype(np.int16)
        np.subtract(q.reshape(n, groups, -1), zeros[:, :, None], out=q.reshape(n, groups, -1))
        return Integers(q, floats(scales).T)

    exact = holder(k, k // groups, 5)
    return SchemeWeight(name, "AWQ-4", (n, k), tuple(parts.values()), exact, read)
