"""A GGUF model split into several files: ``name-00001-of-00003.gguf`` and so on, as llama.cpp
writes them.

The first file holds the metadata. Each file holds some of the tensors and its part number (split.no
from 0, split.count, split.tensors.count).
"""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.base.errors import TidemillError, model_file_error
from tidemill.loading.formats import gguf
from tidemill.loading.mapped import StoredTensor, in_file

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_MAX_PARTS = 9999


def read_model(path: Path) -> gguf.GgufFile:
    """Parse a file, and the other files of its split if it is a part (any part may be given).

    Raises:
        TidemillError: MODEL_FILE naming the file that is invalid, missing, or part of another
            model.
    """
    first = gguf.read_file(path)
    if first.metadata.get("split.count", 0) in (0, 1):
        return first
    paths = _paths(path, first)
    parts = [first if p == path else gguf.read_file(p) for p in paths]
    tensors: dict[str, StoredTensor] = {}
    for number, part in enumerate(parts):
        try:
            _check(part, number, len(parts))
            _add(tensors, part)
        except TidemillError as error:
            raise in_file(error, part.path) from error
    announced = parts[0].metadata.get("split.tensors.count")
    if announced is not None and announced != len(tensors):
        raise model_file_error(
            f"{path.name}: split.tensors.count is {announced}, and the {len(parts)} parts hold "
            f"{len(tensors)} tensors; fetch them again",
            param="split.tensors.count",
        )
    return gguf.GgufFile(path, parts[0].version, parts[0].metadata, tensors)


def _paths(path: Path, file: gguf.GgufFile) -> list[Path]:
    count = file.metadata["split.count"]
    match = _NAME.fullmatch(path.name)
    if not isinstance(count, int) or not 1 < count <= _MAX_PARTS:
        raise model_file_error(f"{path.name}: split.count is {count!r}", param="split.count")
    if match is None or int(match[3]) != count:
        raise model_file_error(
            f"{path.name}: one of {count} parts, which are found by their names "
            f"(name-00001-of-{count:05}.gguf); give it its own back",
            param="split.count",
        )
    paths = [path.with_name(f"{match[1]}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    for other in paths:
        if not other.is_file():
            raise model_file_error(f"{path.name}: its part {other.name} is missing; fetch it too")
    return paths


def _check(part: gguf.GgufFile, number: int, count: int) -> None:
    found = part.metadata.get("split.no"), part.metadata.get("split.count")
    if found != (number, count):
        raise model_file_error(
            f"says that it is part {found[0]!r} of {found[1]!r} where {number} of {count} (counted "
            "from 0) is needed",
            param="split.no",
        )


def _add(tensors: dict[str, StoredTensor], part: gguf.GgufFile) -> None:
    for name, tensor in part.tensors.items():
        if name in tensors:
            raise model_file_error(f"tensor {name!r} is in another part too", param=name)
        tensors[name] = tensor
