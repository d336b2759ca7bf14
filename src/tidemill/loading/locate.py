"""Resolves a model's name to a local path: an existing path, then a bundled model, then the hub."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.base.files import shown
from tidemill.loading.hub import Say, fetch
from tidemill.loading.hub_choice import gguf_models
from tidemill.loading.hub_name import parse

DEFAULT_MODEL = "brook"

_ASSETS = Path(__file__).resolve().parent.parent / "assets"
# Prefixes of names that can only be paths.
_PATH_STARTS = ("/", "./", "../", "~", ".\\", "..\\")
# Files that mark a folder as a model or tokenizer.
_FOLDER_SIGNS = ("config.json", "tokenizer.json", "tokenizer.model", "tiktoken.model")
_FILE_ENDS = (".gguf", ".safetensors", ".json", ".bin", ".model")


def bundled_models() -> dict[str, Path]:
    """Name -> folder of every model in the package; they need no network."""
    folders = sorted(_ASSETS.iterdir()) if _ASSETS.is_dir() else []
    return {folder.name: folder for folder in folders if (folder / "config.json").is_file()}


def locate(model: str | Path | None = None, say: Say | None = None) -> tuple[Path, str]:
    """The local path of a model and its display name; None is the bundled model.

    `say` is called with one line about each automatic choice.

    Raises:
        TidemillError: see `resolve`; CONFIG without a bundled model.
    """
    if model is None:
        # Not resolved by name: a local folder of that name must not replace it.
        bundled = bundled_models().get(DEFAULT_MODEL)
        if bundled is None:
            raise config_error(
                "model", "this installation has no bundled model; name a folder or a .gguf file"
            )
        return bundled, DEFAULT_MODEL
    if not isinstance(model, str | Path) or not str(model).strip():
        raise config_error("model", f"a model is a folder, a .gguf file or a name, got {model!r}")
    try:
        str(model).encode()
    except UnicodeEncodeError:
        raise config_error(
            "model",
            f"the path of the model, {model}, is not UTF-8; rename it, or link to it",
        ) from None
    path = resolve(model, say)
    if existing(model) is None:
        return path, str(parse(str(model)) or model)  # a bundled model keeps its name
    full = path.resolve()
    return path, shown(full.stem if full.suffix == ".gguf" else full.name)


def resolve(model: str | Path, say: Say | None = None) -> Path:
    """The local path of a model. A hub model that is not in the cache is downloaded.

    Only the files that `hub_choice` selects are downloaded: no pickles, no code.

    Args:
        model: a path, a bundled model's name, or a name on the hub (`hub_name`).
        say: called with one line about each automatic choice.

    Raises:
        TidemillError: NOT_FOUND for an unknown path or model, UNAVAILABLE when the hub cannot be
            reached, CONFIG for the address of another site.
    """
    path = existing(model)
    if path is not None:
        return _model_in(path)
    text = str(model)
    bundled = bundled_models().get(text)
    if bundled is not None:
        return bundled
    name = None if isinstance(model, Path) or is_path(text) else parse(text)
    if name is None:
        raise TidemillError(ErrorKind.NOT_FOUND, _no_such_path(text), param="model")
    return fetch(name, say or (lambda line: None))


def existing(model: str | Path) -> Path | None:
    """The existing file or folder that a model's name refers to, or None."""
    path = Path(model).expanduser()
    try:
        return path if str(model) and path.exists() else None
    except OSError:
        return None  # a name too long for a file, or a folder without search permission


def _model_in(path: Path) -> Path:
    """The path itself, or the single model in a folder that holds only GGUF files."""
    if not path.is_dir() or any((path / name).exists() for name in _FOLDER_SIGNS):
        return path
    models = gguf_models([entry.name for entry in path.glob("*.gguf")])
    if len(models) > 1:
        raise TidemillError(
            ErrorKind.NOT_FOUND,
            f"{path}: the folder holds several models; name one: {', '.join(sorted(models))}",
            param="model",
        )
    return path / next(iter(models)) if models else path


def is_path(text: str) -> bool:
    """Whether a name that matches no file was clearly meant as a path."""
    if text.startswith(_PATH_STARTS) or "\\" in text:
        return True
    if "://" in text or not text.endswith(_FILE_ENDS):
        return False
    first, _, rest = text.partition("/")
    return "/" not in rest or os.path.isdir(first)


def _no_such_path(text: str) -> str:
    """The fault of a name that is neither a path nor a hub name."""
    path = Path(text).expanduser()
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    message = f"{text}: no such file or folder"
    if "/" not in text and "\\" not in text:
        message += (
            f" here, and not a bundled model ({', '.join(bundled_models())}); a model of the hub "
            "is named owner/name"
        )
    elif parent != path.parent:
        where = "this folder" if parent == Path() else parent
        message += f": {where} has no {path.relative_to(parent).parts[0]!r}"
    elif not is_path(text):
        message += ", and not a model name on the hub (owner/name)"
    near = _near(path.name if parent == path.parent else path.relative_to(parent).parts[0], parent)
    return message + (f"; did you mean {near}?" if near else "")


def _near(name: str, folder: Path) -> str | None:
    """The entry of a folder with the most similar name."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        names = []
    if folder == Path("."):
        names += bundled_models()
    found = difflib.get_close_matches(name, names, n=1)
    return str(folder / found[0]) if found else None
