"""What a path holds: a model's folder, a GGUF file, or neither."""

from __future__ import annotations

from pathlib import Path

from tidemill.base.errors import model_file_error
from tidemill.base.files import open_regular
from tidemill.loading.gguf import MAGIC
from tidemill.loading.jsonfile import is_present


def check_model(path: Path) -> None:
    """Raise MODEL_FILE unless it is a folder with a config.json, or a GGUF file; or unreadable."""
    if path.is_dir():
        if not is_present(path / "config.json"):
            raise model_file_error(f"{path}: holds no config.json; is it a model's folder?")
    elif not is_gguf(path):
        raise model_file_error(
            f"{path}: neither a model's folder nor a GGUF file; for safetensors give the folder "
            "that also holds config.json"
        )


def is_gguf(path: Path) -> bool:
    """By its name, else by its first bytes. Raises MODEL_FILE when these cannot be read."""
    if path.suffix == ".gguf":
        return True
    try:
        with open_regular(path) as file:
            return file.read(4) == MAGIC
    except OSError as error:
        raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error
