"""Resolves a model's name to a local path: an existing path, then a bundled model, then the hub."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading.bundled import bundled_models
from tidemill.loading.hub_choice import Choice, choose, gguf_models
from tidemill.loading.hub_name import HubName, parse

Say = Callable[[str], None]

_CONNECT_SECONDS = 8.0
# Prefixes of names that can only be paths.
_PATH_STARTS = ("/", "./", "../", "~", ".\\", "..\\")
# Files that mark a folder as a model or tokenizer.
_FOLDER_SIGNS = ("config.json", "tokenizer.json", "tokenizer.model", "tiktoken.model")
_FILE_ENDS = (".gguf", ".safetensors", ".json", ".bin", ".model")


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
    name = None if isinstance(model, Path) or _is_path(text) else parse(text)
    if name is None:
        raise TidemillError(ErrorKind.NOT_FOUND, _no_such_path(text), param="model")
    return _fetch(name, say or (lambda line: None))


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


def _is_path(text: str) -> bool:
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
    elif not _is_path(text):
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


def _fetch(name: HubName, say: Say) -> Path:
    """Path of the hub model `name`, downloaded or cached."""
    # Imported here, because it takes a second and most starts do not need it.
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_OFFLINE

    why = "HF_HUB_OFFLINE is set, unset it" if HF_HUB_OFFLINE else None
    if why is None:
        try:
            # A single attempt: the library's downloads would retry for half a minute.
            info = huggingface_hub.HfApi().model_info(
                name.repo, revision=name.revision, timeout=_CONNECT_SECONDS
            )
            files = [file.rfilename for file in info.siblings or ()]
        except Exception as error:
            refused = _refused(name, error)
            if refused is not None:
                raise refused from error
            why = f"the hub cannot be reached ({_kind(error)}), check the network"
    if why is not None:
        return _cached(name, why, say)
    choice = choose(name, files)
    if choice.note:
        say(choice.note)
    try:
        # The caller chooses the revision, as it chooses which repository to trust. Only data is
        # downloaded, and it
        # is read as untrusted input.
        folder = huggingface_hub.snapshot_download(  # nosec B615
            name.repo,
            revision=name.revision,
            allow_patterns=[glob.escape(file) for file in choice.files],
        )
    except Exception as error:
        raise _refused(name, error) or TidemillError(
            ErrorKind.UNAVAILABLE,
            f"{name}: the download was interrupted ({_kind(error)}); start again to resume it",
            param="model",
            retryable=True,
        ) from error
    return _entry(Path(folder), choice)


def _cached(name: HubName, why: str, say: Say) -> Path:
    """The files of an earlier download, for when the hub cannot be queried."""
    from huggingface_hub.constants import HF_HUB_CACHE

    repo = Path(HF_HUB_CACHE) / ("models--" + name.repo.replace("/", "--"))
    revision = name.revision or "main"
    try:
        folder = repo / "snapshots" / (repo / "refs" / revision).read_text().strip()
    except OSError:
        folder = repo / "snapshots" / revision  # a commit
    files = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
    if not files:
        raise TidemillError(
            ErrorKind.UNAVAILABLE,
            f"{name}: no such path, not in the hub's cache, and {why}, or copy the model here "
            "and give its path",
            param="model",
            retryable=True,
        )
    choice = choose(name, files)
    say(f"{name}: using the hub's cache: {why.partition(',')[0]}")
    return _entry(folder, choice)


def _entry(folder: Path, choice: Choice) -> Path:
    return folder if choice.entry is None else folder / choice.entry


def _refused(name: HubName, error: Exception) -> TidemillError | None:
    """The hub's error response as a TidemillError; None when it sent none."""
    from huggingface_hub import errors

    def not_found(message: str) -> TidemillError:
        return TidemillError(ErrorKind.NOT_FOUND, message, param="model")

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return not_found(
            f"{name.repo}: its owner asks for terms to be accepted: do so on the model's page, and "
            "set HF_TOKEN to a token of your account"
        )
    if isinstance(error, errors.HFValidationError):
        return not_found(f"{name.repo}: no such folder here, and no name that a model can have")
    if isinstance(error, errors.RevisionNotFoundError):
        return not_found(f"{name.repo}: the repository has no revision {name.revision!r}")
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
        return not_found(
            f"{name.repo}: no such folder here, and no such model on the hub; if it is a private "
            "one, set HF_TOKEN"
        )
    if status is not None:
        return TidemillError(
            ErrorKind.UNAVAILABLE,
            f"{name}: the hub answered {status}; try again later",
            param="model",
            retryable=True,
        )
    return None


def _kind(error: Exception) -> str:
    """An error's kind in the terms of its library, for any of the library's versions."""
    cause: Any = error.__cause__ or error
    return type(cause).__name__
