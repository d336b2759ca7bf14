"""Writes GGUF files: header, metadata, then the tensors.

Format: see `loading/formats/gguf.py`; version 3, little endian, 32 bytes of alignment.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.base.errors import unsupported
from tidemill.base.text_lists import Texts
from tidemill.convert.output import OutTensor, Progress, ResumableFile
from tidemill.loading.formats.gguf import DEFAULT_ALIGNMENT, MAGIC, MAX_NAME_BYTES, TENSOR_TYPES

_NUMBERS = {name: number for number, (name, _, _) in TENSOR_TYPES.items()}
_ARRAYS = {bool: (7, "?"), int: (5, "<i4"), float: (6, "<f4")}


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[OutTensor],
    identity: str,
    tell: Progress = lambda count: None,
) -> None:
    """Write a model; resumes an interrupted earlier call with the same identity.

    Args:
        metadata: key -> text, number, bool, or list of one of these.
        tensors: in the file's order.
        identity: of the source and the settings.
        tell: called with the number of bytes written.
    """
    settled = {k: v for k, v in metadata.items() if k != "general.alignment"}
    body = b"".join(_string(key) + _value(key, value) for key, value in settled.items())
    infos, offsets, at = [], [], 0
    for tensor in tensors:
        infos.append(_info(tensor, at))
        offsets.append(at)
        at += -(-tensor.nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    head = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(settled)) + body + b"".join(infos)
    head += bytes(-len(head) % DEFAULT_ALIGNMENT)
    placed = [(len(head) + o, t) for o, t in zip(offsets, tensors, strict=True)]
    ResumableFile(path, head, identity).write(placed, len(head) + at, tell)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: Any) -> bytes:
    if isinstance(value, list | array | Texts):
        return struct.pack("<I", 9) + _array(key, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        if value >= 0:
            return struct.pack("<II", 4, value) if value < 2**32 else struct.pack("<IQ", 10, value)
        return struct.pack("<Ii", 5, value) if value >= -(2**31) else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            narrow = float(np.float32(value)) == value
        return struct.pack("<If", 6, value) if narrow else struct.pack("<Id", 12, value)
    raise unsupported(key, f"GGUF key {key!r} cannot hold a {type(value).__name__}")


def _array(key: str, values: Sequence[Any]) -> bytes:
    if values and all(isinstance(v, str) for v in values):
        return struct.pack("<IQ", 8, len(values)) + b"".join(map(_string, values))
    kind = type(values[0]) if values else int
    if kind not in _ARRAYS or any(type(v) is not kind for v in values):
        raise unsupported(key, f"GGUF key {key!r}: lists of texts, numbers or bools are written")
    number, form = _ARRAYS[kind]
    wide = kind is int and any(not -(2**31) <= v < 2**31 for v in values)
    number, form = (11, "<i8") if wide else (number, form)
    return struct.pack("<IQ", number, len(values)) + np.array(values, form).tobytes()


def _info(tensor: OutTensor, offset: int) -> bytes:
    if len(tensor.name.encode()) >= MAX_NAME_BYTES:
        raise unsupported(tensor.name, f"tensor name {tensor.name!r} is too long for GGUF")
    dims = tensor.shape[::-1]
    return (
        _string(tensor.name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", _NUMBERS[tensor.dtype], offset)
    )
