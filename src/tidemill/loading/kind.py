"""The kind of a path: a model folder, a GGUF file, or neither."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from tidemill.base.errors import model_file_error
from tidemill.base.files import open_regular
from tidemill.loading.formats.gguf import MAGIC
from tidemill.loading.jsonfile import is_present

_PART = re.compile(r".*-\d{5}-of-\d{5}\.gguf")


def check_model(path: Path) -> None:
    """Raise MODEL_FILE unless it is a folder with a config.json or a GGUF file with weights, and
    readable."""
    if path.is_dir():
        if not is_present(path / "config.json"):
            if is_present(path / "adapter_config.json"):
                raise model_file_error(
                    f"{path}: an adapter, which changes a model: serve its base with --adapter "
                    f"NAME={path} (`tidemill pull` takes it with an adapter_model.safetensors)"
                )
            raise model_file_error(f"{path}: no config.json found; is it a model folder?")
    elif not is_gguf(path):
        raise model_file_error(
            f"{path}: neither a model folder nor a GGUF file; for safetensors give the folder "
            "that also holds config.json"
        )
    elif vocabulary_alone(path):
        raise model_file_error(
            f"{path}: a vocabulary without weights, which only `tidemill tokenize` and `tidemill "
            "show` read; to run the model give the GGUF file that has its weights"
        )


def is_gguf(path: Path) -> bool:
    """Whether it is a GGUF file, by its name or its first bytes. Raises MODEL_FILE when these
    cannot be read."""
    if path.suffix == ".gguf":
        return True
    try:
        with open_regular(path) as file:
            return file.read(4) == MAGIC
    except OSError as error:
        raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error


def vocabulary_alone(path: Path) -> bool:
    """Whether it is a GGUF file without tensors that is not part of a split, whose first part may
    have none. Raises MODEL_FILE when it cannot be read."""
    if _PART.fullmatch(path.name):
        return False
    try:
        with open_regular(path) as file:
            head = file.read(16)
    except OSError as error:
        raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error
    return len(head) == 16 and head[:4] == MAGIC and struct.unpack_from("<Q", head, 8)[0] == 0
