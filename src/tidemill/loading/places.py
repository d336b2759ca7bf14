"""Location of a weight in the files, and the types it can be held in.

A weight is stored in one tensor or, in a quantization scheme, in several, and its stored type may
be one that no backend supports. It is held in the smallest lossless type. Without such a type it is
expanded to float32, which is exact but mostly too large to keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import unsupported
from tidemill.loading.mapped import StoredTensor
from tidemill.models.blocks import DECODERS, decode, dequantize
from tidemill.models.blocks.repack import NEAR_HOLDERS, PACKERS, holder, multiplied_out
from tidemill.models.small_floats import SMALL_FLOATS, bf16_bytes
from tidemill.models.tensors import DTYPE_BLOCKS, ROW_HEADS, RawTensor

Float32 = NDArray[np.float32]
_PIECE = 2**21  # values repacked at once


class Place(Protocol):
    """Location of a weight.

    Attributes:
        name: as stored; for several tensors, the name of the weight they make up.
        dtype: the format's or scheme's name of its type.
        shape: outermost axis first.
        nbytes: as stored.
        parts: the tensors that hold it.
        exact: the type that holds it without loss: one of `DTYPE_BLOCKS`; F32 when no smaller type
            does.
    """

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def parts(self) -> tuple[StoredTensor, ...]: ...
    @property
    def exact(self) -> str: ...

    def values(self) -> Float32:
        """The weight as float32 [shape], exactly as its scheme defines it."""

    def packed(self, rounded: bool = False) -> RawTensor:
        """The weight in its type `exact`. Raises `Inexact` when a number does not fit (for example
        a scale that is not a float16 value, unless scales may be `rounded`)."""


@runtime_checkable
class Stack(Protocol):
    """A place whose first axis counts matrices (experts) that can be read one by one, without
    unpacking the others."""

    def member(self, index: int) -> Place:
        """Matrix `index`."""


@dataclass(frozen=True, slots=True)
class OneTensor:
    """A weight that is one stored tensor.

    Attributes:
        stored: the tensor.
        nearly: `exact` may be a type that rounds scales (`NEAR_HOLDERS`).
    """

    stored: StoredTensor
    nearly: bool = False

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return (self.stored,)

    @property
    def exact(self) -> str:
        """See `Place`."""
        dtype = self.stored.dtype
        if dtype in SMALL_FLOATS:
            return "BF16"
        return holder(dtype) or (NEAR_HOLDERS.get(dtype) if self.nearly else None) or "F32"

    def member(self, index: int) -> OneTensor:
        """See `Stack`."""
        return OneTensor(self.stored.member(index), self.nearly)

    def values(self) -> Float32:
        """See `Place`."""
        raw = np.frombuffer(self.stored.view, np.uint8)
        dtype = self.stored.dtype
        if dtype in DECODERS:
            found = dequantize(dtype, raw)
        elif dtype in SMALL_FLOATS:
            found = SMALL_FLOATS[dtype][raw]
        else:
            found = _FLOATS[dtype](raw)
        return found.reshape(self.stored.shape)

    def packed(self, rounded: bool = False) -> RawTensor:
        """See `Place`."""
        stored, exact = self.stored, self.exact
        if stored.dtype == exact:
            return RawTensor(exact, stored.shape, stored.view)
        if exact in PACKERS:
            return self._repacked(exact, rounded or NEAR_HOLDERS.get(stored.dtype) == exact)
        if exact == "BF16":
            return RawTensor("BF16", stored.shape, bf16_bytes(self.values()))
        return RawTensor("F32", stored.shape, self.values().reshape(-1).data.cast("B"))

    def _repacked(self, exact: str, rounded: bool) -> RawTensor:
        size, count, _ = DECODERS[self.stored.dtype]
        to_size, to_count = DTYPE_BLOCKS[exact]
        blocks = np.frombuffer(self.stored.view, np.uint8).reshape(-1, size)
        out = np.empty(len(blocks) * count // to_count * to_size, np.uint8)
        step = _PIECE // count
        for start in range(0, len(blocks), step):
            part = decode(self.stored.dtype, blocks[start : start + step])
            piece = PACKERS[exact](multiplied_out(part) if rounded else part)
            at = start * count // to_count * to_size
            out[at : at + piece.size] = piece.reshape(-1)
        return RawTensor(exact, self.stored.shape, out.data.cast("B"))


_FLOATS: dict[str, Callable[[NDArray[np.uint8]], Float32]] = {
    "F32": lambda raw: raw.view(np.float32),
    "F16": lambda raw: raw.view(np.float16).astype(np.float32),
    "BF16": lambda raw: (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32),
}
READ_TYPES = (*_FLOATS, *SMALL_FLOATS, *DECODERS)


def one_tensor(stored: StoredTensor) -> OneTensor:
    """The place of a weight in one tensor; UNSUPPORTED, naming type and tensor, for a type that is
    not supported."""
    if stored.dtype not in READ_TYPES:
        raise unsupported(
            stored.name,
            f"{stored.file.path.name}: tensor {stored.name!r} has type {stored.dtype}; supported "
            f"are {', '.join(READ_TYPES)}; convert the model to one of them",
        )
    return OneTensor(stored)


def held_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Size in bytes of a tensor held in one of `DTYPE_BLOCKS`; rows must be whole blocks."""
    size, count = DTYPE_BLOCKS[dtype]
    return math.prod(shape) // count * size + math.prod(shape[:-1]) * ROW_HEADS.get(dtype, 0)
