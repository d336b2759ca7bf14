"""The decoded form that all GGUF block types share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int = NDArray[np.int16]
UInt8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Decoded blocks of one type: value = d * sub * q - offset * suboffset.

    Every product is exact or rounds once, in the order of ggml's reference functions, so that
    values are equal bit for bit.

    Attributes:
        d: float32 [blocks, 1], the block's scale.
        sub: int16 [blocks, groups], integer factors of the scale; all 1 in types without them.
        q: int16 [blocks, groups, values per group].
        offset: float32 [blocks, 1], or None in types without an offset.
        suboffset: int16 [blocks, groups], integer factors of the offset.
    """

    d: Float32
    sub: Int
    q: Int
    offset: Float32 | None = None
    suboffset: Int | None = None

    def values(self) -> Float32:
        """float32 [blocks, values per block]."""
        scale = self.d * self.sub.astype(np.float32)
        found = scale[:, :, None] * self.q.astype(np.float32)
        if self.offset is not None and self.suboffset is not None:
            found -= (self.offset * self.suboffset.astype(np.float32))[:, :, None]
        return found.reshape(len(self.d), -1)


def half(data: UInt8) -> Float32:
    """Bytes [blocks, 2], each pair a float16, as float32 [blocks, 1]."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def words(data: UInt8, dtype: str) -> NDArray[np.unsignedinteger]:
    """Bytes [blocks, n] as little-endian words [blocks, n / size]."""
    return np.ascontiguousarray(data).view("<" + dtype)


def fields(data: NDArray[np.unsignedinteger], shifts: list[int], mask: int) -> Int:
    """Bit fields of words [blocks, n]: int16 [blocks, n, len(shifts)]."""
    by = np.array(shifts, data.dtype)
    return ((data[:, :, None] >> by) & data.dtype.type(mask)).astype(np.int16)


def planes(data: UInt8, width: int, shifts: list[int], mask: int) -> Int:
    """Bit planes of bytes [blocks, n] as int16 [blocks, n * len(shifts)]: for each run of `width`
    bytes the fields at the first shift, then those at the next shift, and so on."""
    by = np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    found = (data.reshape(len(data), -1, 1, width) >> by) & np.uint8(mask)
    return found.reshape(len(data), -1).astype(np.int16)


def ones(blocks: int) -> Int:
    """`sub` of a type without group scales."""
    return np.ones((blocks, 1), np.int16)
