"""A model's name to a local path: what exists locally, then the package's own, then the hub."""

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
# How a name begins that can only be a path.
_PATH_STARTS = ("/", "./", "../", "~", ".\\", "..\\")
# What makes a folder a model's, or a tokenizer's.
_FOLDER_SIGNS = ("config.json", "tokenizer.json", "tokenizer.model", "tiktoken.model")
_FILE_ENDS = (".gguf", ".safetensors", ".json", ".bin", ".model")


def resolve(model: str | Path, say: Say | None = None) -> Path:
    """The local path of a model, downloaded if it is one of the hub that is not in its cache.

    Only what `hub_choice` names is fetched: no pickles, no code.

    Args:
        model: a path, a bundled model's name, or a name on the hub (`hub_name`).
        say: told in a line what was chosen for the person.

    Raises:
        TidemillError: NOT_FOUND when there is neither such a path nor such a model, UNAVAILABLE
            when the hub cannot be reached, CONFIG for another site's address.
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
    """The path a model is named by, if there is such a file or folder."""
    path = Path(model).expanduser()
    try:
        return path if str(model) and path.exists() else None
    except OSError:
        return None  # a name that no file can have (too long), or a folder that may not be entered


def _model_in(path: Path) -> Path:
    """The path itself; of a folder of GGUF files alone, the model that is in it."""
    if not path.is_dir() or any((path / name).exists() for name in _FOLDER_SIGNS):
        return path
    models = gguf_models([entry.name for entry in path.glob("*.gguf")])
    if len(models) > 1:
        raise TidemillError(
            ErrorKind.NOT_FOUND,
            f"{path}: several models lie there, name one of them: {', '.join(sorted(models))}",
            param="model",
        )
    return path / next(iter(models)) if models else path


def _is_path(text: str) -> bool:
    """Whether a name that is none of a file can only have been meant as one."""
    if text.startswith(_PATH_STARTS) or "\\" in text:
        return True
    if "://" in text or not text.endswith(_FILE_ENDS):
        return False
    first, _, rest = text.partition("/")
    return "/" not in rest or os.path.isdir(first)


def _no_such_path(text: str) -> str:
    """What is wrong with a name that is neither a path nor of the hub."""
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
        message += ", and no name of a model on the hub (owner/name)"
    near = _near(path.name if parent == path.parent else path.relative_to(parent).parts[0], parent)
    return message + (f"; did you mean {near}?" if near else "")


def _near(name: str, folder: Path) -> str | None:
    """What in a folder is named nearly so."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        names = []
    if folder == Path("."):
        names += bundled_models()
    found = difflib.get_close_matches(name, names, n=1)
    return str(folder / found[0]) if found else None


def _fetch(name: HubName, say: Say) -> Path:
    """What `name` means, downloaded or as it was before."""
    # Imported only here: it takes a second, and most starts do not need it.
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_OFFLINE

    why = "HF_HUB_OFFLINE is set, unset it" if HF_HUB_OFFLINE else None
    if why is None:
        try:
            # One try: the library's downloads would try for half a minute.
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
        # A revision is the caller's to name, as it is which repository to trust; what comes is data
        # alone, read as untrusted input.
        folder = huggingface_hub.snapshot_download(  # nosec B615
            name.repo,
            revision=name.revision,
            allow_patterns=[glob.escape(file) for file in choice.files],
        )
    except Exception as error:
        raise _refused(name, error) or TidemillError(
            ErrorKind.UNAVAILABLE,
            f"{name}: the download broke off ({_kind(error)}); start again, what has come is kept",
            param="model",
            retryable=True,
        ) from error
    return _entry(Path(folder), choice)


def _cached(name: HubName, why: str, say: Say) -> Path:
    """What an earlier download left, when the hub cannot be asked."""
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
            f"{name}: no such path here, not in the hub's cache, and {why}, or copy the model here "
            "and give its path",
            param="model",
            retryable=True,
        )
    choice = choose(name, files)
    say(f"{name} is taken from the hub's cache: {why.partition(',')[0]}")
    return _entry(folder, choice)


def _entry(folder: Path, choice: Choice) -> Path:
    return folder if choice.entry is None else folder / choice.entry


def _refused(name: HubName, error: Exception) -> TidemillError | None:
    """The hub's answer as an error of ours; None where it gave none."""
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
    """An error's kind, in the words of the library it came from, of any of its versions."""
    cause: Any = error.__cause__ or error
    return type(cause).__name__
