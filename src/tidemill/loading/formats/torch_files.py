"""PyTorch checkpoints (.bin: a zip archive of a pickle and raw storages) as mapped tensors.

No code in them is executed: see `pickled.py`. The format before PyTorch 1.6 (a sequence of pickles)
is not supported.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from tidemill.base.errors import TidemillError, model_file_error, unsupported
from tidemill.loading.formats.pickled import PickledTensor, read_pickle, state_dict
from tidemill.loading.formats.safetensors import TYPE_BYTES
from tidemill.loading.formats.sharded import Layout
from tidemill.loading.formats.zipped import Entry, entries
from tidemill.loading.mapped import MappedFile, StoredTensor, in_file

_PICKLE = "/data.pkl"
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the old format's first pickle, a number
_OBJECTS_AT_LEAST = 4096
_BYTES_PER_OBJECT = 64


def read_file(path: Path) -> dict[str, StoredTensor]:
    """Tensors of one file by name; only the pickle is read.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED naming the file and the fault.
    """
    file = MappedFile(path)
    try:
        return _parse(file)
    except TidemillError as error:
        raise in_file(error, path) from error


LAYOUT = Layout("pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", read_file)


def _parse(file: MappedFile) -> dict[str, StoredTensor]:
    if bytes(file.view[: len(_LEGACY)]) == _LEGACY:
        raise unsupported(
            None,
            "written by PyTorch before 1.6, which is not read; load and save it once with a "
            "current PyTorch, or convert it to safetensors",
        )
    places = entries(file)
    found = [name for name in places if name.endswith(_PICKLE) and name.count("/") == 1]
    if len(found) != 1:
        raise model_file_error("not a PyTorch file: the archive has no data.pkl")
    root = found[0].removesuffix(_PICKLE)
    order = places.get(f"{root}/byteorder")
    if order is not None and bytes(_bytes(file, order)[:6]) != b"little":
        raise unsupported(None, "its numbers are big-endian, which is not read")
    budget = _OBJECTS_AT_LEAST + file.size // _BYTES_PER_OBJECT
    tensors = state_dict(read_pickle(_bytes(file, places[found[0]]), budget))
    return {name: _tensor(file, places, root, name, t) for name, t in tensors.items()}


def _bytes(file: MappedFile, entry: Entry) -> memoryview:
    return file.view[entry.offset : entry.offset + entry.nbytes]


def _tensor(
    file: MappedFile, places: dict[str, Entry], root: str, name: str, tensor: PickledTensor
) -> StoredTensor:
    entry = places.get(f"{root}/data/{tensor.storage.key}")
    if entry is None:
        raise model_file_error(
            f"tensor {name!r} lies in storage {tensor.storage.key[:40]!r}, which is missing",
            param=name,
        )
    size = TYPE_BYTES[tensor.dtype]
    begin, nbytes = tensor.offset * size, math.prod(tensor.shape) * size
    if begin + nbytes > entry.nbytes:
        raise model_file_error(
            f"tensor {name!r} ends at byte {begin + nbytes} of a storage of {entry.nbytes}",
            param=name,
        )
    if not _is_contiguous(tensor):
        raise unsupported(
            name,
            f"tensor {name!r} of shape {list(tensor.shape)} is stored with strides "
            f"{list(tensor.strides)}; save it contiguous, or convert the model to safetensors",
        )
    return StoredTensor(name, tensor.dtype, tensor.shape, file, entry.offset + begin, nbytes)


def _is_contiguous(tensor: PickledTensor) -> bool:
    steps = itertools.accumulate(reversed(tensor.shape[1:]), lambda a, b: a * b, initial=1)
    wanted = list(steps)[::-1]
    pairs = zip(tensor.shape, tensor.strides, wanted, strict=False)
    return math.prod(tensor.shape) == 0 or all(n == 1 or s == w for n, s, w in pairs)
