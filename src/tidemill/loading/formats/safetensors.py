"""safetensors files, one or sharded by an index, as mapped tensors.

Format: the safetensors README ("Format"): 8 bytes of little-endian header length, a JSON header,
the tensors' bytes, back to back. Everything is checked before it is used.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tidemill.base.errors import TidemillError, model_file_error
from tidemill.loading.formats import sharded
from tidemill.loading.formats.sharded import Layout
from tidemill.loading.jsonfile import parse_object
from tidemill.loading.mapped import MappedFile, StoredTensor, in_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the reference implementation's bound
_LENGTH_BYTES = 8

# Bytes per value of every type the format defines in whole bytes.
TYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2,
    "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip


def header_length(beginning: memoryview) -> int | None:
    """Bytes before the tensors of a file that begins like this; None if that needs more of it."""
    if len(beginning) < _LENGTH_BYTES:
        return None
    return _LENGTH_BYTES + int.from_bytes(beginning[:_LENGTH_BYTES], "little")


def read_file(path: Path) -> dict[str, StoredTensor]:
    """Tensors of one file by name; only the header is read.

    Raises:
        TidemillError: MODEL_FILE naming the file and the fault: missing, truncated, invalid header,
            unknown type, bytes that overlap, leave gaps or exceed the file.
    """
    file = MappedFile(path)
    try:
        return _parse(file)
    except TidemillError as error:
        raise in_file(error, path) from error


def _parse(file: MappedFile) -> dict[str, StoredTensor]:
    if file.size < _LENGTH_BYTES:
        raise model_file_error("truncated: shorter than a safetensors header; fetch it again")
    length = int.from_bytes(file.view[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise model_file_error(f"not a safetensors file: its header would take {length} bytes")
    start = _LENGTH_BYTES + length
    if start > file.size:
        raise model_file_error(
            f"truncated: the header ends at byte {start} and the file at {file.size}; "
            "fetch it again"
        )
    header = parse_object(bytes(file.view[_LENGTH_BYTES:start]), "header")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(file, start, name, entry) for name, entry in header.items()}
    _check_layout(file, start, list(tensors.values()))
    return tensors


def _tensor(file: MappedFile, start: int, name: str, entry: Any) -> StoredTensor:
    if not isinstance(entry, dict):
        raise model_file_error(f"header: tensor {name!r} is not an object", param=name)
    dtype = entry.get("dtype")
    shape, offsets = _naturals(entry.get("shape")), _naturals(entry.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in TYPE_BYTES:
        raise model_file_error(f"tensor {name!r} has unknown type {str(dtype)[:40]!r}", param=name)
    if shape is None or len(shape) > 8:
        raise model_file_error(f"tensor {name!r} has an invalid shape", param=name)
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise model_file_error(f"tensor {name!r} has invalid data_offsets", param=name)
    nbytes = offsets[1] - offsets[0]
    if nbytes != math.prod(shape) * TYPE_BYTES[dtype]:
        raise model_file_error(
            f"tensor {name!r}: {nbytes} bytes do not hold {dtype} of shape {shape}", param=name
        )
    if start + offsets[1] > file.size:
        raise model_file_error(
            f"truncated: tensor {name!r} ends at byte {start + offsets[1]} and the file at "
            f"{file.size}; fetch it again",
            param=name,
        )
    return StoredTensor(name, dtype, tuple(shape), file, start + offsets[0], nbytes)


def _naturals(value: Any) -> list[int] | None:
    """`value` if it is a list of integers from 0 to 2^63."""
    valid = isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**63 for v in value
    )
    return value if valid else None


def _check_layout(file: MappedFile, start: int, tensors: list[StoredTensor]) -> None:
    """Check that the tensors fill the file: the format allows neither gaps nor overlaps."""
    end = start
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != end:
            what = "overlaps another" if tensor.offset < end else "leaves a gap before it"
            raise model_file_error(f"tensor {tensor.name!r} {what}", param=tensor.name)
        end = tensor.offset + tensor.nbytes
    if end != file.size:
        raise model_file_error(f"{file.size - end} bytes after the last tensor belong to no tensor")


LAYOUT = Layout(SINGLE, INDEX, ".safetensors", read_file)


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """Tensors of a checkpoint folder: model.safetensors, or the shards that its index names.

    Raises:
        TidemillError: MODEL_FILE when the folder holds none; see `sharded.read_folder`.
    """
    if not LAYOUT.present(folder):
        raise model_file_error(f"{folder}: holds neither {SINGLE} nor {INDEX}{_hint(folder)}")
    return sharded.read_folder(folder, LAYOUT)


def _hint(folder: Path) -> str:
    if any(folder.glob("*.pth")) or any(folder.glob("pytorch_model*.bin")):
        return "; of PyTorch's files pytorch_model.bin and its index are read"
    if any(folder.glob("*.gguf")):
        return "; for a GGUF file give the path of the file itself"
    return "; the download may be incomplete"
