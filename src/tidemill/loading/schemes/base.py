"""Shared by the quantization schemes of Hugging Face checkpoints.

A scheme stores a matrix in several tensors (integers, scales, zero points). `assemble` combines
them under the matrix's own name, so that families see the names and shapes of a float checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import TidemillError, model_file_error, unsupported
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import Float32, Place
from tidemill.models.blocks.base import Blocks, Int, ones
from tidemill.models.blocks.repack import PACKERS, Inexact, multiplied_out
from tidemill.models.quantization import int8_rows
from tidemill.models.small_floats import SMALL_FLOATS, bf16_bytes, e8m0
from tidemill.models.tensors import RawTensor

Stored = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix as integers and scales: value = scale * (q - zero).

    Attributes:
        q: int16 [n, k], zero points already subtracted.
        scales: float32 [n, groups].
        group_of: int64 [k], each column's group; None when groups are k / groups columns in order.
    """

    q: Int
    scales: Float32
    group_of: NDArray[np.int64] | None = None

    def values(self) -> Float32:
        """float32 [n, k]: each value rounds an exact product once."""
        n, k = self.q.shape
        if self.group_of is not None:
            return self.scales[:, self.group_of] * self.q.astype(np.float32)
        groups = self.scales.shape[1]
        grouped = self.q.reshape(n, groups, k // groups).astype(np.float32)
        return (grouped * self.scales[:, :, None]).reshape(n, k)

    def packed(self, dtype: str, rounded: bool = False) -> NDArray[np.uint8]:
        """The same numbers as blocks, or as rows with a scale each (INT8); raises Inexact when they
        do not fit. Scales are `rounded` to float16, or must be exact float16 values."""
        if dtype == "INT8":
            return int8_rows(self.scales, self.q)
        if self.group_of is not None:
            raise Inexact("its columns belong to groups in no order (act-order)")
        n, k = self.q.shape
        groups = self.scales.shape[1]
        rows = max(1, 2**21 // k)
        pieces = []
        for start in range(0, n, rows):
            d = self.scales[start : start + rows].reshape(-1, 1)
            q = self.q[start : start + rows].reshape(-1, 1, k // groups)
            blocks = Blocks(d, ones(len(d)), q)
            pieces.append(PACKERS[dtype](multiplied_out(blocks) if rounded else blocks))
        return np.concatenate(pieces)


Read = Callable[[], Integers | Float32]


@dataclass(frozen=True, slots=True)
class SchemeWeight:
    """A weight that a quantization scheme stores in several tensors; see `places.Place`.

    Attributes:
        read: decodes the tensors to integers with scales, or to float values in a scheme without
            integers.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[StoredTensor, ...]
    exact: str
    read: Read = field(repr=False)

    @property
    def nbytes(self) -> int:
        """See `places.Place`."""
        return sum(part.nbytes for part in self.parts)

    def values(self) -> Float32:
        """See `places.Place`."""
        found = self.read()
        values = found.values() if isinstance(found, Integers) else found
        return values.reshape(self.shape)

    def packed(self, rounded: bool = False) -> RawTensor:
        """See `places.Place`."""
        found = self.read()
        if isinstance(found, Integers) and self.exact in (*PACKERS, "INT8"):
            data = found.packed(self.exact, rounded)
            return RawTensor(self.exact, self.shape, data.reshape(-1).data.cast("B"))
        values = found.values() if isinstance(found, Integers) else found
        if self.exact == "BF16":
            return RawTensor("BF16", self.shape, bf16_bytes(values))
        if self.exact == "F16":
            halves = np.ascontiguousarray(values, np.float16)
            return RawTensor("F16", self.shape, halves.reshape(-1).data.cast("B"))
        flat = np.ascontiguousarray(values).reshape(-1)
        return RawTensor("F32", self.shape, flat.data.cast("B"))


def holder(k: int, group: int, bits: int) -> str:
    """The type that holds integers of `bits` bits, sign included, in groups of columns."""
    if group % 32 or k % group:
        return "F32"
    holders = {4: "Q4_0", 5: "Q5_0", 8: "Q8_0"}
    return next((kind for most, kind in holders.items() if bits <= most), "F32")


@dataclass(frozen=True, slots=True)
class Scheme:
    """Quantization of a checkpoint.

    Attributes:
        label: name for users.
        suffixes: endings of the tensors that make up a weight, the first one always present.
        build: creates the weight from (its name, ending -> tensor), or returns None to leave the
            tensors unchanged.
        ignored: endings of tensors with quantization parameters of activations or the KV cache,
            which are not used.
    """

    label: str
    suffixes: tuple[str, ...]
    build: Callable[[str, Stored], Place | None]
    ignored: tuple[str, ...] = ()


def assemble(scheme: Scheme, stored: Stored) -> tuple[dict[str, StoredTensor | Place], int]:
    """The tensors of a checkpoint, with every quantized weight combined into one.

    Returns:
        name -> tensor or weight, and the number of ignored tensors.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED naming the weight whose tensors are inconsistent.
    """
    found: dict[str, StoredTensor | Place] = {}
    used: set[str] = set()
    first = scheme.suffixes[0]
    for name in stored:
        if not name.endswith(first):
            continue
        stem = name.removesuffix(first)
        parts = {s: stored[stem + s] for s in scheme.suffixes if stem + s in stored}
        try:
            weight = scheme.build(stem + ".weight", parts)
        except TidemillError as error:
            message = f"{scheme.label} weight {stem!r}: {error.message}"
            raise TidemillError(error.kind, message, param=stem) from error
        if weight is not None:
            found[weight.name] = weight
            used |= {stem + s for s in parts}
    ignored = {name for name in stored if name not in used and name.endswith(scheme.ignored)}
    plain = {n: t for n, t in stored.items() if n not in used and n not in ignored}
    return plain | found, len(ignored)


# --- reading parts -------------------------------------------------------------------------------


def part(parts: Stored, suffix: str) -> StoredTensor:
    """A part that must exist."""
    if suffix not in parts:
        raise model_file_error(f"its tensor {suffix} is missing", param=suffix)
    return parts[suffix]


def check_shape(tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    """MODEL_FILE unless the tensor has this shape."""
    if tensor.shape != shape:
        raise model_file_error(
            f"{tensor.name} has shape {list(tensor.shape)} where {list(shape)} is needed",
            param=tensor.name,
        )


def check_type(tensor: StoredTensor, *dtypes: str) -> None:
    """MODEL_FILE unless the tensor has one of these types."""
    if tensor.dtype not in dtypes:
        raise model_file_error(
            f"{tensor.name} has type {tensor.dtype} where {' or '.join(dtypes)} is needed",
            param=tensor.name,
        )


SCALE_TYPES = ("F32", "F16", "BF16", "F8_E8M0")
_POWERS = e8m0()


def floats(tensor: StoredTensor) -> Float32:
    """A small tensor of scales as float32 [shape]."""
    check_type(tensor, *SCALE_TYPES)
    raw = np.frombuffer(tensor.view, np.uint8)
    if tensor.dtype == "F8_E8M0":
        return _POWERS[raw].reshape(tensor.shape)
    if tensor.dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    return tensor.array().astype(np.float32)


def unpack(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Little-endian 32-bit words [rows, w] as unsigned fields [rows, w * 32 / bits], lowest first.

    Fields may cross words (three bits do).
    """
    data = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)
    if bits == 8:
        return data
    if bits == 3:
        flags = np.unpackbits(data, axis=1, bitorder="little").reshape(len(words), -1, 3)
        triples: NDArray[np.uint8] = flags @ np.array([1, 2, 4], np.uint8)
        return triples
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((data[:, :, None] >> shifts) & np.uint8(2**bits - 1)).reshape(len(words), -1)


def small_float_values(tensor: StoredTensor) -> Float32:
    """A tensor of 8-bit floats as float32 [shape]."""
    check_type(tensor, *SMALL_FLOATS)
    return SMALL_FLOATS[tensor.dtype][np.frombuffer(tensor.view, np.uint8)].reshape(tensor.shape)


def bits_of(config: Mapping[str, Any], allowed: tuple[int, ...], *keys: str) -> int:
    """The number of bits a scheme's config names; UNSUPPORTED for others."""
    key = next((k for k in keys if k in config), keys[0])
    value = config.get(key)
    if isinstance(value, bool) or value not in allowed:
        raise unsupported(
            f"quantization_config.{key}",
            f"quantization_config.{key} is {value!r}; supported are {', '.join(map(str, allowed))}",
        )
    return int(value)
