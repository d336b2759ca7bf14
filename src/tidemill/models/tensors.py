"""Tensors as passed from a file to a backend, and their canonical names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

# Bytes and values per storage unit. Quantized types have GGUF's block layouts, row by row.
DTYPE_BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (4, 1),
    "F16": (2, 1),
    "BF16": (2, 1),
    "Q8_0": (34, 32),
    "Q4_0": (18, 32),
    "MXFP4": (17, 32),
    "IQ4_NL": (18, 32),
    "Q4_1": (20, 32),
    "Q5_0": (22, 32),
    "Q5_1": (24, 32),
    "Q4_K": (144, 256),
    "Q5_K": (176, 256),
    "Q6_K": (210, 256),
    "INT8": (1, 1),
}
# Bytes before a row's values: the float32 scale of int8 with a scale per output channel.
ROW_HEADS = {"INT8": 4}


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Type, shape and size in bytes of a tensor, known before its bytes are read.

    `rounded`: see `RawTensor`.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    rounded: str = ""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Bytes of a tensor with their meaning; a mapped file is not copied.

    Attributes:
        dtype: a key of `DTYPE_BLOCKS`.
        shape: logical shape, outermost first ([out, in] for a matrix).
        data: C-contiguous bytes; for quantized types each row is a whole number of blocks.
        rounded: for values stored in fewer bits than `dtype` has: the default quantized type to
            hold them in; empty for `dtype` itself.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    rounded: str = ""

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return self.data.nbytes

    def release_pages(self, begin: int, end: int) -> None:
        """Release bytes `begin` to `end` of the data once they have been copied; called in
        ascending order. Their memory may be freed until they are accessed again."""


class DeferredTensor(RawTensor):
    """A tensor whose bytes are produced at every access to `data` and not kept.

    Args:
        header: its type, shape and size.
        read: produces the bytes.
        release: implementation of `release_pages`.
    """

    __slots__ = ("_read", "_release", "_size")
    _read: Callable[[], RawTensor]
    _release: Callable[[int, int], None]
    _size: int

    def __init__(
        self,
        header: TensorHeader,
        read: Callable[[], RawTensor],
        release: Callable[[int, int], None],
    ) -> None:
        values = {"dtype": header.dtype, "shape": header.shape, "rounded": header.rounded}
        made = {"_size": header.nbytes, "_read": read, "_release": release}
        for field, value in {**values, **made}.items():
            object.__setattr__(self, field, value)  # the base is frozen

    @property
    def data(self) -> memoryview:
        """C-contiguous bytes; see `RawTensor`."""
        return self._read().data

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes; it is known without reading the data."""
        return self._size

    def release_pages(self, begin: int, end: int) -> None:
        """See `RawTensor`."""
        self._release(begin, end)


def expected_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor with this type and shape; the last axis must be whole blocks.

    Raises ValueError when it is not.
    """
    size, values = DTYPE_BLOCKS[dtype]
    if not shape:
        return size
    if shape[-1] % values:
        raise ValueError(f"a row of {shape[-1]} values is not a multiple of {dtype}'s {values}")
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    return rows * (ROW_HEADS.get(dtype, 0) + shape[-1] // values * size)


# Canonical names. A family maps a checkpoint's names to these. The spec determines which of them a
# model has: `DecoderSpec.expected_tensors`.
EMBED = "embed.weight"  # [vocab, hidden]
POSITIONS = "positions.weight"  # [max_positions, hidden]
FINAL_NORM = "final_norm.weight"  # [hidden]
TYPES = "token_types.weight"  # [token types, hidden]
LM_HEAD = "lm_head.weight"  # [vocab, hidden]; absent when tied to EMBED
LM_HEAD_BIAS = "lm_head.bias"  # [vocab]
LAYER_INPUTS = "layer_inputs.embed.weight"  # [vocab, layers * width]


def layer_name(layer: int, tensor: str) -> str:
    """Canonical name of a layer's tensor: ``layers.3.attn.q.weight``."""
    return f"layers.{layer}.{tensor}"


TensorMap = Mapping[str, RawTensor]
