"""GGUF files as metadata and mapped tensors.

Format: the GGUF specification in the ggml repository (versions 2 and 3, little endian): magic,
version, counts, metadata pairs, tensor infos, padding to the alignment, tensor data. Every count
and length is compared with the remaining bytes before anything is allocated for it, so that a
malicious file costs no more than its own size.
"""

from __future__ import annotations

import itertools
import math
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.base.errors import TidemillError, model_file_error
from tidemill.base.text_lists import Texts
from tidemill.loading.mapped import MappedFile, StoredTensor, in_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 64
MAX_DIMS = 4
MAX_ARRAY_DEPTH = 4
MAX_STRING_BYTES = 2**26
MAX_ITEMS = 2**24  # over all metadata; a vocabulary of 256k tokens has about a million
# Memory limit of the metadata's values: a multiple of the file size, plus the needs of a vocabulary
# in a file without tensors. Below are the bytes that Python takes for a string, besides its
# characters,
# and for a number in a list.
_MEMORY_FACTOR = 4
_MEMORY_AT_LEAST = 64 * 2**20
_TEXT_BYTES = 72
_NUMBER_BYTES = 40
_TENSOR_BYTES = 600

# Metadata value types by number: struct format, or the kinds below.
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
_MANY = 4096  # numbers of a list; longer lists are not stored as objects

# Tensor types by number: (name, bytes per block, values per block). Unsupported types are listed so
# that the error can name them.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 4, 1), 1: ("F16", 2, 1), 2: ("Q4_0", 18, 32), 3: ("Q4_1", 20, 32),
    6: ("Q5_0", 22, 32), 7: ("Q5_1", 24, 32), 8: ("Q8_0", 34, 32), 9: ("Q8_1", 36, 32),
    10: ("Q2_K", 84, 256), 11: ("Q3_K", 110, 256), 12: ("Q4_K", 144, 256), 13: ("Q5_K", 176, 256),
    14: ("Q6_K", 210, 256), 15: ("Q8_K", 292, 256), 16: ("IQ2_XXS", 66, 256),
    17: ("IQ2_XS", 74, 256), 18: ("IQ3_XXS", 98, 256), 19: ("IQ1_S", 50, 256),
    20: ("IQ4_NL", 18, 32), 21: ("IQ3_S", 110, 256), 22: ("IQ2_S", 82, 256),
    23: ("IQ4_XS", 136, 256), 24: ("I8", 1, 1), 25: ("I16", 2, 1), 26: ("I32", 4, 1),
    27: ("I64", 8, 1), 28: ("F64", 8, 1), 29: ("IQ1_M", 56, 256), 30: ("BF16", 2, 1),
    34: ("TQ1_0", 54, 256), 35: ("TQ2_0", 66, 256), 39: ("MXFP4", 17, 32), 40: ("NVFP4", 36, 64),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed GGUF file.

    Attributes:
        path: its path.
        version: 2 or 3.
        metadata: key -> number, bool, string, list of them, or `Texts`.
        tensors: stored name -> location; shapes are outermost axis first (GGUF stores them
            innermost first).
    """

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


class _Cursor:
    """Reads values in order; running past the end is a MODEL_FILE error."""

    def __init__(self, view: memoryview, path: Path) -> None:
        self._view = view
        self._path = path
        self.position = 0
        self._items = 0
        self._memory = _MEMORY_FACTOR * len(view) + _MEMORY_AT_LEAST

    @property
    def left(self) -> int:
        return len(self._view) - self.position

    def take(self, count: int) -> memoryview:
        if count > self.left:
            raise model_file_error(
                f"truncated at byte {len(self._view)}: {count} more are needed at byte "
                f"{self.position}; fetch it again"
            )
        start = self.position
        self.position += count
        return self._view[start : self.position]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self, limit: int = MAX_STRING_BYTES) -> str:
        length = self.scalar("Q")
        if length > limit:
            raise model_file_error(f"a string of {length} bytes at byte {self.position}")
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise model_file_error(f"a string before byte {self.position} is not UTF-8") from error

    def texts(self, count: int) -> Texts:
        found = Texts(self._view, self.position, count, self._path)
        self.position = found.end
        return found

    def spend(self, nbytes: int) -> None:
        """Account for memory before it is allocated."""
        self._memory -= nbytes
        if self._memory < 0:
            raise model_file_error(
                f"the metadata before byte {self.position} would take over {_MEMORY_FACTOR} times "
                "the file's size in memory; a real model's file does not"
            )

    def count(self, item_bytes: int, memory: int) -> int:
        """A count of items that take at least `item_bytes` bytes each in the file, and `memory` in
        memory."""
        count = int(self.scalar("Q"))
        self._items += count
        if count * item_bytes > self.left or self._items > MAX_ITEMS:
            raise model_file_error(
                f"truncated or corrupt: {count} items are announced at byte {self.position} and "
                f"{self.left} bytes are left; fetch it again"
            )
        self.spend(count * memory)
        return count


def read_file(path: Path) -> GgufFile:
    """Parse a file's header; tensor data is not read.

    Raises:
        TidemillError: MODEL_FILE naming the file and the fault.
    """
    file = MappedFile(path)
    try:
        return _parse(file)
    except TidemillError as error:
        raise in_file(error, path) from error


def header_length(beginning: memoryview) -> int | None:
    """Bytes before the tensors' data of a file that begins like this; None if that needs more of
    it, or it is none."""
    cursor = _Cursor(beginning, Path())
    try:
        _read_header(cursor)
    except TidemillError:
        return None
    return cursor.position


def _parse(file: MappedFile) -> GgufFile:
    cursor = _Cursor(file.view, file.path)
    version, metadata, infos = _read_header(cursor)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    sane = isinstance(alignment, int) and 1 <= alignment <= 2**20
    if not sane or alignment & (alignment - 1):
        raise model_file_error(f"general.alignment must be a power of two, got {alignment!r}")
    data = -(-cursor.position // alignment) * alignment
    return GgufFile(file.path, version, metadata, _place(file, infos, data, alignment))


def _read_header(cursor: _Cursor) -> tuple[int, dict[str, Any], list[_Info]]:
    """Version, metadata and tensor infos."""
    if cursor.left < 24 or bytes(cursor.take(4)) != MAGIC:
        raise model_file_error("not a GGUF file, or truncated in its header")
    version = int(cursor.scalar("I"))
    if version not in VERSIONS:
        raise model_file_error(
            f"GGUF version {version} is not supported (2 and 3, little endian, are); "
            "convert the model with a current converter"
        )
    tensor_count = cursor.scalar("Q")
    pairs = cursor.count(13, _TEXT_BYTES)  # a key's length, a type, one byte of value
    if tensor_count * 24 > cursor.left:
        raise model_file_error(f"truncated or corrupt: {tensor_count} tensors are announced")
    cursor.spend(tensor_count * _TENSOR_BYTES)
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.string(MAX_KEY_BYTES)
        if key in metadata:
            raise model_file_error(f"metadata key {key[:80]!r} occurs twice", param=key)
        metadata[key] = _value(cursor, int(cursor.scalar("I")), 0)
    return version, metadata, [_tensor_info(cursor) for _ in range(tensor_count)]


def _value(cursor: _Cursor, kind: int, depth: int) -> Any:
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind])
    if kind == _STRING:
        return cursor.string()
    if kind != _ARRAY or depth >= MAX_ARRAY_DEPTH:
        raise model_file_error(f"metadata value of unknown type {kind} at byte {cursor.position}")
    inner = int(cursor.scalar("I"))
    if inner in _SCALARS:
        code = _SCALARS[inner]
        size = struct.calcsize("<" + code)
        count = cursor.count(size, _NUMBER_BYTES)
        values = struct.unpack(f"<{count}{code}", cursor.take(count * size))
        return list(values) if code == "?" or count < _MANY else array(code, values)
    if inner == _STRING:
        return cursor.texts(cursor.count(8, _TEXT_BYTES))
    count = cursor.count(12, _TEXT_BYTES)
    return [_value(cursor, inner, depth + 1) for _ in range(count)]


_Info = tuple[str, tuple[int, ...], int, int]


def _tensor_info(cursor: _Cursor) -> _Info:
    """(name, shape outermost first, type number, offset in the data section)."""
    name = cursor.string(MAX_NAME_BYTES)
    dims = int(cursor.scalar("I"))
    if dims > MAX_DIMS:
        raise model_file_error(f"tensor {name!r} has {dims} dimensions", param=name)
    shape = tuple(int(cursor.scalar("Q")) for _ in range(dims))
    return name, shape[::-1], int(cursor.scalar("I")), int(cursor.scalar("Q"))


def _place(
    file: MappedFile, infos: list[_Info], data: int, alignment: int
) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for name, shape, number, offset in infos:
        if name in tensors:
            raise model_file_error(f"tensor {name!r} occurs twice", param=name)
        dtype, size, values = TENSOR_TYPES.get(number, (f"number {number}", 0, 1))
        if shape and shape[-1] % values:
            raise model_file_error(
                f"tensor {name!r}: rows of {shape[-1]} values are no whole blocks of {dtype}",
                param=name,
            )
        nbytes = math.prod(shape) // values * size
        if offset % alignment:
            raise model_file_error(f"tensor {name!r} is not aligned to {alignment}", param=name)
        if data + offset + nbytes > file.size:
            raise model_file_error(
                f"truncated: tensor {name!r} ends at byte {data + offset + nbytes} and the file at "
                f"{file.size}; fetch it again",
                param=name,
            )
        tensors[name] = StoredTensor(name, dtype, shape, file, data + offset, nbytes)
    ordered = sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes))
    for left, right in itertools.pairwise(ordered):
        if left.offset + left.nbytes > right.offset:
            raise model_file_error(
                f"tensors {left.name!r} and {right.name!r} overlap", param=right.name
            )
    return tensors
