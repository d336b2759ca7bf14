"""`tidemill list`, `rm` and `cp`: the models on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.acting import JSON, print_json
from tidemill.cli.declared import argument, option

if TYPE_CHECKING:
    from tidemill.library.catalog import Library

MAX_DEPTH = 3
_ID_CHARS = 12
_HEADER = ("model", "id", "from", "size", "added")


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the list; `added` is in seconds since the epoch, 0 where it is not known."""

    name: str
    origin: str
    size: int
    digest: str = ""
    added: float = 0.0

    def document(self) -> dict[str, Any]:
        """The line for programs."""
        return {
            "name": self.name,
            "origin": self.origin,
            "bytes": self.size,
            "digest": self.digest or None,
            "added": self.added or None,
        }

    def cells(self) -> tuple[str, ...]:
        from tidemill.cli.machine import human_bytes

        added = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.added)) if self.added else ""
        return self.name, self.digest[:_ID_CHARS], self.origin, human_bytes(self.size), added


def list_models(
    folders: tuple[Path, ...] = argument((), help="Folders to look into, as well."),
    as_json: bool = JSON,
) -> None:
    """List models: the library, bundled ones, the Hugging Face cache, and the folders given."""
    from tidemill.base.errors import config_error
    from tidemill.cli.machine import human_bytes
    from tidemill.library.catalog import Library

    for folder in folders:
        if not folder.is_dir():
            raise config_error("folders", f"{folder} is not a folder")
    library = Library.open()
    count, held = library.unfinished()
    models = list(_all_models(library, folders))
    if as_json:
        print_json(
            {
                "models": [row.document() for row in models],
                "unfinished": {"files": count, "bytes": held},
            }
        )
        return
    rows = [_HEADER, *(row.cells() for row in models)]
    # Plain columns: a narrow terminal must not truncate a path.
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for name, digest, origin, size, added in rows:
        line = f"{name:{widths[0]}}  {digest:{widths[1]}}  {origin:{widths[2]}}  "
        click.echo(f"{line}{size:>{widths[3]}}  {added}".rstrip())
    if count:
        click.echo(
            f"files of unfinished pulls: {count} ({human_bytes(held)}); the same `tidemill pull` "
            "resumes them, `tidemill rm --unfinished` removes them",
            err=True,
        )


def remove(
    names: tuple[str, ...] = argument((), help="Names, as `tidemill list` shows them."),
    unfinished: bool = option(
        False, "--unfinished", help="Remove unfinished downloads, and files that no model uses."
    ),
    as_json: bool = JSON,
) -> None:
    """Remove models of the library; says how many bytes that frees. Referenced files stay."""
    from tidemill.base.errors import config_error
    from tidemill.cli.machine import human_bytes
    from tidemill.library.catalog import Library

    if not names and not unfinished:
        raise config_error("names", "name the models to remove; `tidemill list` shows them")
    library = Library.open()
    freed_of = {name: library.remove(name) for name in names}
    cleaned = library.clean() if unfinished else 0
    if as_json:
        print_json({"removed": freed_of, "unfinished": cleaned})
        return
    for name, freed in freed_of.items():
        said = (
            f"freed {human_bytes(freed)}"
            if freed
            else "its files are referenced or shared, and stay"
        )
        click.echo(f"removed {name}: {said}")
    if unfinished:
        click.echo(f"removed unfinished downloads: freed {human_bytes(cleaned)}")


def copy(
    source: str = argument(..., help="A model of the library."),
    target: str = argument(..., help="Its second name; name@2 makes it a version of that name."),
) -> None:
    """Give a model of the library a second name; the files are shared."""
    from tidemill.library.catalog import Library

    entry = Library.open().copy(source, target)
    click.echo(f"{entry.name} is {source} now, too")


def _all_models(library: Library, folders: Sequence[Path]) -> Iterator[_Row]:
    from tidemill.loading.locate import bundled_models

    roots: set[str] = set()
    yield from _library(library, roots)
    for name, path in bundled_models().items():
        yield _Row(name, "bundled", _size(path))
    yield from _hub_cache(roots)
    for folder in folders:
        for path in _find(folder, MAX_DEPTH):
            yield _Row(str(path), "folder" + _remark(path), _size(path))


def _library(library: Library, roots: set[str]) -> Iterator[_Row]:
    """The library's models; adds the paths that they reference to `roots`."""
    from tidemill.base.errors import TidemillError

    for name in library.names():
        try:
            found = library.manifest(name)
            library.path(found)
        except TidemillError as error:
            yield _Row(name, f"library, unusable: {error.message}", 0)
            continue
        origin = "library, referenced" if found.root else "library"
        if found.is_adapter:
            origin += ", adapter"
        roots.add(found.root or "")
        yield _Row(name, origin, found.size, found.digest, found.created)


def _hub_cache(listed: set[str]) -> Iterator[_Row]:
    """The models of the hub's cache but those that are `listed` by their paths."""
    from huggingface_hub.constants import HF_HUB_CACHE

    for repo in sorted(Path(HF_HUB_CACHE).glob("models--*")):
        name = repo.name.removeprefix("models--").replace("--", "/")
        for path in _find(repo / "snapshots", 2):
            if str(path) in listed:
                continue
            # The path below snapshots/COMMIT is the file's name in the repository.
            file = path.relative_to(repo / "snapshots").parts[1:]
            yield _Row("/".join((name, *file)), "hub cache" + _remark(path), _size(path))


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
