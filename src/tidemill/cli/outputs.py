"""Files and folders that a command writes: refused by their option's name, before the work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.base.errors import config_error


def check_writable(**files: Path | None) -> None:
    """Refuse a file that cannot be written before anything is made for it.

    Args:
        files: by the names of their options.

    Raises:
        TidemillError: kind CONFIG.
    """
    for name, file in files.items():
        if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
            raise config_error(name, f"--{name} {file}: it cannot be written there")


@contextmanager
def writing(name: str, folder: Path) -> Iterator[None]:
    """Errors of the system, while files are written into a folder, as errors of its option.

    Args:
        name: of the option or argument, as it is typed.
        folder: made where it is missing.

    Raises:
        TidemillError: kind CONFIG.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise config_error(
            name.lstrip("-"), f"{name} {folder}: it cannot be written: {error.strerror}"
        ) from None
