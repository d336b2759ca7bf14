"""MXFP4 experts in gpt-oss checkpoints: blocks of 32 four-bit floats with a power-of-two scale.

Definition: OCP Microscaling formats, section 5.3 (e2m1 elements, e8m0 scales). A tensor ``X`` is
stored as ``X_blocks``, uint8 [..., n, k / 32, 16], two adjacent values per byte, the first in the
low half, and ``X_scales``, uint8 [..., n, k / 32].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import model_file_error
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import Float32
from tidemill.loading.schemes.base import Scheme, Stored, check_shape, check_type, part
from tidemill.models.blocks.repack import Inexact
from tidemill.models.small_floats import e8m0
from tidemill.models.tensors import RawTensor

_BLOCK = 32
# Twice the values of the 16 codes, as integers: value = 2^(scale - 128) * this.
_HALVES = (0, 1, 2, 3, 4, 6, 8, 12)
_TWICE = np.array([*_HALVES, *(-h for h in _HALVES)], np.int8)
_POWERS = e8m0()
_NAN = 255


@dataclass(frozen=True, slots=True)
class Mxfp4Weight:
    """A matrix, or a stack of them, in blocks and scales; see `places.Place`."""

    name: str
    blocks: StoredTensor
    scales: StoredTensor

    @property
    def dtype(self) -> str:
        return "MXFP4"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.blocks.shape[:-2], self.blocks.shape[-2] * _BLOCK)

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes + self.scales.nbytes

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return (self.blocks, self.scales)

    @property
    def exact(self) -> str:
        """The same numbers in GGUF's order."""
        return "MXFP4"

    def member(self, index: int) -> Mxfp4Weight:
        """One matrix of a stack; see `places.Stack`."""
        return Mxfp4Weight(self.name, self.blocks.member(index), self.scales.member(index))

    def values(self) -> Float32:
        """See `places.Place`."""
        low, high = self._codes()
        pairs = np.stack([_TWICE[low], _TWICE[high]], axis=-1).reshape(-1, _BLOCK)
        scales = (_POWERS / np.float32(2))[self._scales()]
        return (pairs.astype(np.float32) * scales[:, None]).reshape(self.shape)

    def packed(self, rounded: bool = False) -> RawTensor:
        """See `places.Place`: a scale, then bytes with value j of 32 and value 16 + j."""
        low, high = self._codes()
        scales = self._scales()
        if (scales == _NAN).any():
            raise Inexact("a scale is NaN")
        out = np.empty((len(scales), 1 + _BLOCK // 2), np.uint8)
        out[:, 0] = scales
        out[:, 1::2] = low[:, :8] | low[:, 8:] << 4
        out[:, 2::2] = high[:, :8] | high[:, 8:] << 4
        return RawTensor("MXFP4", self.shape, out.reshape(-1).data.cast("B"))

    def _codes(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Codes of even and of odd values, [blocks, 16] each."""
        data = np.frombuffer(self.blocks.view, np.uint8).reshape(-1, _BLOCK // 2)
        return data & np.uint8(15), data >> np.uint8(4)

    def _scales(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.scales.view, np.uint8)


def scheme(_config: Mapping[str, Any]) -> Scheme:
    """Read a ``quantization_config`` of method mxfp4. Tensors not stored in blocks are
    unchanged."""
    return Scheme("MXFP4", ("_blocks", "_scales"), _build)


def _build(name: str, parts: Stored) -> Mxfp4Weight:
    blocks, scales = parts["_blocks"], part(parts, "_scales")
    check_type(blocks, "U8")
    check_type(scales, "U8")
    if len(blocks.shape) < 3 or blocks.shape[-1] != _BLOCK // 2 or not math.prod(blocks.shape):
        raise model_file_error(
            f"{blocks.name} has shape {list(blocks.shape)} where [..., rows, blocks, 16] is needed",
            param=blocks.name,
        )
    check_shape(scales, blocks.shape[:-1])
    return Mxfp4Weight(blocks.name, blocks, scales)
