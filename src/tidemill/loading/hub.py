"""A model's name to a local path: what exists locally, then the package's own, then the hub."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.base.errors import ErrorKind, TidemillError, model_file_error
from tidemill.loading.bundled import bundled_models

# The only files ever read from a folder (or fetched for one).
FILE_PATTERNS = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
    "tiktoken.model",
    "*.tiktoken",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)

_HUB_ID = re.compile(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}")


def resolve(model: str | Path) -> Path:
    """The local path of a model, downloaded if it is a hub id that is not in the cache.

    Only the file kinds of `FILE_PATTERNS` are fetched: no pickles, no code.

    Raises:
        TidemillError: NOT_FOUND when there is neither such a path nor such a model, UNAVAILABLE
            when the hub cannot be reached.
    """
    path = existing(model)
    if path is not None:
        return path
    bundled = bundled_models().get(str(model))
    if bundled is not None:
        return bundled
    repo, file = _split(str(model))
    if repo is None:
        raise TidemillError(
            ErrorKind.NOT_FOUND,
            f"{model}: no such file or folder, not a bundled model "
            f"({', '.join(bundled_models())}), and not a hub id (owner/name)",
            param="model",
        )
    return _fetch(repo, file)


def existing(model: str | Path) -> Path | None:
    """The path a model is named by, if there is such a file or folder."""
    path = Path(model).expanduser()
    try:
        return path if str(model) and path.exists() else None
    except OSError:
        return None  # a name that no file can have (too long), or a folder that may not be entered


def _split(model: str) -> tuple[str | None, str | None]:
    """("owner/name", file in it or None); (None, None) when it is no hub id."""
    if model.count("/") == 2 and model.endswith(".gguf"):
        repo, _, file = model.rpartition("/")
    else:
        repo, file = model, ""
    if _HUB_ID.fullmatch(repo) and ".." not in repo and re.fullmatch(r"[\w.-]*", file):
        return repo, file or None
    return None, None


def _fetch(repo: str, file: str | None) -> Path:
    # Imported only here: it takes a second, and most starts do not need it.
    import httpx
    import huggingface_hub
    from huggingface_hub import errors

    try:
        # No revision is pinned: which repository to trust is the caller's to say, and what comes
        # is data alone (`FILE_PATTERNS`), read as untrusted input.
        if file is not None:
            return Path(huggingface_hub.hf_hub_download(repo, file))  # nosec B615
        patterns = list(FILE_PATTERNS)
        folder = Path(huggingface_hub.snapshot_download(repo, allow_patterns=patterns))  # nosec B615
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        # A local entry is "not found" too when the hub cannot be reached.
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _unreachable(repo) from error
        raise TidemillError(
            ErrorKind.NOT_FOUND,
            f"{repo}: no such model or file on the hub, or it is private or gated; for those set "
            "HF_TOKEN after accepting the model's terms",
            param="model",
        ) from error
    except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        raise _unreachable(repo) from error
    if not (folder / "config.json").is_file():
        raise model_file_error(
            f"{repo}: the repository has no config.json; for a GGUF file give owner/name/file.gguf"
        )
    return folder


def _unreachable(repo: str) -> TidemillError:
    return TidemillError(
        ErrorKind.UNAVAILABLE,
        f"{repo}: not on this machine, and the hub cannot be reached; check the network, or copy "
        "the model's folder here and give its path",
        param="model",
        retryable=True,
    )
