"""Matrices as int8 or int4 with a scale per row or group: compressed-tensors' pack-quantized.

Round to nearest, symmetric. Scales are written as float16, or as bfloat16 for a bfloat16 model, and
the integers are chosen for the scale as written. Layout: see `loading/schemes/compressed.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.convert.output import Buffer, Loss, OutTensor, narrowed, row_pieces
from tidemill.loading.places import Place
from tidemill.models.small_floats import rounded_bf16


@dataclass(frozen=True, slots=True)
class IntegerType:
    """int8 per row, or int4 per group of columns.

    Attributes:
        bits: 8 or 4.
        group: columns that share a scale; None for whole rows.
    """

    bits: int
    group: int | None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """True for matrices that can be written in this form."""
        whole = len(shape) == 2 and shape[1] % (32 // self.bits) == 0
        return whole and (self.group is None or shape[1] % self.group == 0)

    def config(self) -> dict[str, Any]:
        """The ``quantization_config`` of a config.json."""
        weights = {
            "num_bits": self.bits, "type": "int", "symmetric": True, "dynamic": False,
            "strategy": "channel" if self.group is None else "group", "group_size": self.group,
        }  # fmt: skip
        group = {
            "targets": ["Linear"], "weights": weights,
            "input_activations": None, "output_activations": None,
        }  # fmt: skip
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        }


TYPES = {
    "int8": IntegerType(8, None),
    "int4-g32": IntegerType(4, 32),
    "int4-g64": IntegerType(4, 64),
    "int4-g128": IntegerType(4, 128),
}


def _scales(values: NDArray[np.float32], kind: IntegerType, bf16: bool) -> NDArray[np.float32]:
    """float32 [rows, groups] that the written type holds exactly."""
    groups = values.reshape(len(values), -1, kind.group or values.shape[1])
    wanted = np.abs(groups).max(axis=2) / np.float32(2 ** (kind.bits - 1) - 0.5)
    if not bf16:
        halves: NDArray[np.float32] = wanted.astype(np.float16).astype(np.float32)
        return halves
    return rounded_bf16(wanted)


def _codes(
    values: NDArray[np.float32], scales: NDArray[np.float32], kind: IntegerType
) -> NDArray[np.float32]:
    """Integers [rows, k] in the type's range."""
    step = np.repeat(scales, values.shape[1] // scales.shape[1], axis=1)
    scaled = np.divide(values, step, out=np.zeros_like(values), where=step != 0)
    half = 2 ** (kind.bits - 1)
    codes: NDArray[np.float32] = np.rint(scaled).clip(-half, half - 1)
    return codes


def as_integers(
    place: Place, name: str, kind: IntegerType, bf16: bool, loss: Loss
) -> list[OutTensor]:
    """The three tensors that represent a matrix named ``name``."""
    n, k = place.shape
    groups = 1 if kind.group is None else k // kind.group
    stem = name.removesuffix(".weight")
    scale_type = "BF16" if bf16 else "F16"

    def packed() -> Iterator[Buffer]:
        for piece in row_pieces(place):
            values = np.ascontiguousarray(piece.values())
            scales = _scales(values, kind, bf16)
            codes = _codes(values, scales, kind)
            loss.add(name, values, codes * np.repeat(scales, k // groups, axis=1))
            fields = (codes + 2 ** (kind.bits - 1)).astype(np.uint8)
            if kind.bits == 4:
                fields = fields[:, ::2] | (fields[:, 1::2] << 4)
            yield np.ascontiguousarray(fields).reshape(-1).data

    def scaled() -> Iterator[Buffer]:
        for piece in row_pieces(place):
            scales = _scales(np.ascontiguousarray(piece.values()), kind, bf16)
            yield narrowed(scales, scale_type).reshape(-1).view(np.uint8).data

    shape = np.array([n, k], np.int64).tobytes()
    words = k * kind.bits // 32
    return [
        OutTensor(f"{stem}.weight_packed", "I32", (n, words), n * words * 4, packed),
        OutTensor(f"{stem}.weight_scale", scale_type, (n, groups), n * groups * 2, scaled),
        OutTensor(f"{stem}.weight_shape", "I64", (2,), 16, lambda: iter([shape])),
    ]
