"""References a model that lies on this machine's disks, without copying it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from tidemill.library.pulling import Found, Pulling
from tidemill.loading.hub_choice import ADAPTER_FILES, gguf_models, is_folder_file
from tidemill.loading.kind import check_model
from tidemill.loading.locate import locate

# Weights that are read of a local folder, although none are downloaded.
_LOCAL_FILES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


def pull_path(path: Path, pulling: Pulling) -> Found:
    """A model folder, GGUF file or adapter's folder, digested and referenced.

    Raises:
        TidemillError: NOT_FOUND or MODEL_FILE; see `loading.locate` and `loading.kind`.
    """
    model, name = locate(path.expanduser().absolute())
    if all((model / file).is_file() for file in ADAPTER_FILES):
        stored = pulling.reference({file: model / file for file in ADAPTER_FILES})
        return Found(name, str(model), stored, None, str(model))
    check_model(model)
    if model.is_dir():
        files = {
            file.relative_to(model).as_posix(): file
            for file in sorted((*model.glob("*"), *model.glob("*/*")))
            if file.is_file() and _belongs(file.relative_to(model).as_posix())
        }
        entry = None
    else:
        split = gguf_models([file.name for file in model.parent.glob("*.gguf")])
        parts = next((p for p in split.values() if model.name in p), (model.name,))
        files = {part: model.parent / part for part in parts}
        entry = model.name
    stored = pulling.reference(files)
    return Found(name, str(model), stored, entry, str(model))


def _belongs(path: str) -> bool:
    return is_folder_file(path) or any(fnmatchcase(path, pattern) for pattern in _LOCAL_FILES)
