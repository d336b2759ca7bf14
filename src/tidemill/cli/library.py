"""`tidemill list`: the models available offline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tidemill.cli.declared import argument

MAX_DEPTH = 3


def list_models(
    folders: tuple[Path, ...] = argument((), help="Folders to look into, as well."),
) -> None:
    """List models: bundled, in the Hugging Face cache, and in the folders given."""
    from tidemill.base.errors import config_error
    from tidemill.cli.machine import human_bytes

    for folder in folders:
        if not folder.is_dir():
            raise config_error("folders", f"{folder} is not a folder")
    rows = [("model", "from", "size")]
    rows += [(name, origin, human_bytes(size)) for name, origin, size in _all_models(folders)]
    # Plain columns: a narrow terminal must not truncate a path.
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, origin, size in rows:
        click.echo(f"{name:{widths[0]}}  {origin:{widths[1]}}  {size:>{widths[2]}}")


def _all_models(folders: Sequence[Path]) -> Iterator[tuple[str, str, int]]:
    from tidemill.loading.locate import bundled_models

    for name, path in bundled_models().items():
        yield name, "bundled", _size(path)
    yield from _hub_cache()
    for folder in folders:
        for path in _find(folder, MAX_DEPTH):
            yield str(path), "folder" + _remark(path), _size(path)


def _hub_cache() -> Iterator[tuple[str, str, int]]:
    from huggingface_hub.constants import HF_HUB_CACHE

    for repo in sorted(Path(HF_HUB_CACHE).glob("models--*")):
        name = repo.name.removeprefix("models--").replace("--", "/")
        for path in _find(repo / "snapshots", 2):
            # The path below snapshots/COMMIT is the file's name in the repository.
            file = path.relative_to(repo / "snapshots").parts[1:]
            yield "/".join((name, *file)), "hub cache" + _remark(path), _size(path)


def _find(folder: Path, depth: int) -> Iterator[Path]:
    """Model folders and .gguf files (the first of several parts), `depth` levels down."""
    from tidemill.loading.hub_choice import gguf_models

    if _is_model_folder(folder):
        yield folder
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return  # unreadable or absent: nothing to list
    models = gguf_models([entry.name for entry in entries])
    for entry in entries:
        # Not the methods of `Path`: they raise on links that may not be followed.
        if entry.suffix == ".gguf":
            if entry.name in models and os.path.isfile(entry):
                yield entry
        elif depth > 0 and os.path.isdir(entry):
            yield from _find(entry, depth - 1)


def _is_model_folder(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    except OSError:
        return False


def _remark(path: Path) -> str:
    """A suffix for the origin column: unreadable file, or a vocabulary without weights."""
    from tidemill.base.errors import TidemillError
    from tidemill.loading.kind import vocabulary_alone

    try:
        alone = path.is_file() and vocabulary_alone(path)
    except TidemillError:
        return ", cannot be read"
    return ", a vocabulary alone" if alone else ""


def _size(path: Path) -> int:
    from tidemill.loading.hub_choice import gguf_models

    if path.is_file():
        parts = gguf_models([file.name for file in path.parent.glob("*.gguf")])
        files = [path.parent / name for name in parts.get(path.name, (path.name,))]
    else:
        files = [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    return sum(os.path.getsize(file) for file in files if os.path.isfile(file))
