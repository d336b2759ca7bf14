"""Downloads models of the Hugging Face hub, or finds them in its cache."""

from __future__ import annotations

import glob
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading.hub_choice import Choice, choose
from tidemill.loading.hub_name import HubName

Say = Callable[[str], None]

_CONNECT_SECONDS = 8.0


def fetch(name: HubName, say: Say) -> Path:
    """Path of the hub model `name`, downloaded unless it is in the cache.

    Only the files that `hub_choice` selects are downloaded: no pickles, no code.

    Args:
        say: called with one line about each automatic choice.

    Raises:
        TidemillError: NOT_FOUND for an unknown model, UNAVAILABLE when the hub cannot be reached.
    """
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
            refused = refusal(name, error)
            if refused is not None:
                raise refused from error
            why = f"the hub cannot be reached ({error_kind(error)}), check the network"
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
        raise refusal(name, error) or TidemillError(
            ErrorKind.UNAVAILABLE,
            f"{name}: the download was interrupted ({error_kind(error)}); start again to resume it",
            param="model",
            retryable=True,
        ) from error
    return _entry(Path(folder), choice)


def _cached(name: HubName, why: str, say: Say) -> Path:
    folder, files = cached_files(name, why)
    choice = choose(name, files)
    say(f"{name}: using the hub's cache: {why.partition(',')[0]}")
    return _entry(folder, choice)


def cached_files(name: HubName, why: str) -> tuple[Path, list[str]]:
    """The folder of an earlier download and its files, for when the hub cannot be queried.

    Args:
        why: the reason, and what to do about it.

    Raises:
        TidemillError: UNAVAILABLE, if there is none.
    """
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
    return folder, files


def _entry(folder: Path, choice: Choice) -> Path:
    return folder if choice.entry is None else folder / choice.entry


def refusal(name: HubName, error: Exception) -> TidemillError | None:
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


def error_kind(error: Exception) -> str:
    """An error's kind in the terms of its library, for any of the library's versions."""
    cause: Any = error.__cause__ or error
    return type(cause).__name__
