"""Pulls a model from the Hugging Face hub, or references it in the hub's own cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.base.errors import TidemillError
from tidemill.library import http
from tidemill.library.blobs import digest_of
from tidemill.library.fetch import RemoteFile
from tidemill.library.manifest import is_inside
from tidemill.library.names import hub_default
from tidemill.library.pulling import Found, Pulling
from tidemill.loading.hub import cached_files, error_kind, refusal
from tidemill.loading.hub_choice import Choice, choose_any
from tidemill.loading.hub_name import HubName

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

_TIMEOUT_SECONDS = 20.0


def pull_hub(name: HubName, pulling: Pulling) -> Found:
    """The files of a hub model; what the hub's cache has is referenced there.

    Address, token and offline mode are those of huggingface_hub (``HF_ENDPOINT``, ``HF_TOKEN``,
    ``HF_HUB_OFFLINE``).

    Raises:
        TidemillError: NOT_FOUND or UNAVAILABLE; see also `Fetcher.fetch`.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return _offline(name, pulling, "HF_HUB_OFFLINE is set, unset it")
    try:
        info = _info(name, pulling)
    except TidemillError:
        raise
    except Exception as error:
        refused = refusal(name, error)
        if refused is not None:
            raise refused from error
        why = f"the hub cannot be reached ({error_kind(error)}), check the network"
        return _offline(name, pulling, why)
    siblings = {file.rfilename: file for file in info.siblings or () if is_inside(file.rfilename)}
    choice = choose_any(name, [*siblings])
    if choice.note:
        pulling.reporter.say(choice.note)
    commit = info.sha or name.revision or "main"
    licence = _licence(info)
    chosen = {path: siblings[path] for path in choice.files}
    snapshot = _snapshot(name, commit)
    if _has_all(snapshot, chosen, pulling):
        return _referenced(name, choice, snapshot, pulling, commit, licence)
    files = pulling.fetch(
        [_remote(name, commit, path, file) for path, file in chosen.items()],
    )
    return Found(hub_default(name), str(name), tuple(files), choice.entry, None, commit, licence)


def _info(name: HubName, pulling: Pulling) -> ModelInfo:
    """What the hub says of a model; while it is busy, it is tried again."""
    import huggingface_hub

    reporter = pulling.reporter
    patience = http.Patience(str(name), reporter.cancel, reporter.say)
    while True:
        reporter.check()
        try:
            return huggingface_hub.HfApi().model_info(
                name.repo, revision=name.revision, files_metadata=True, timeout=_TIMEOUT_SECONDS
            )
        except Exception as error:
            response: Any = getattr(error, "response", None)
            code = getattr(response, "status_code", 0)
            busy = http.interruption(code, "the hub", getattr(response, "headers", {}))
            if busy is None:
                raise
            patience.wait(busy)


def _remote(name: HubName, commit: str, path: str, file: RepoSibling) -> RemoteFile:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    lfs = file.lfs
    return RemoteFile(
        hf_hub_url(name.repo, path, revision=commit),
        path,
        file.size if lfs is None else lfs.size,
        None if lfs is None else lfs.sha256,
        file.blob_id if lfs is None else None,
        build_hf_headers(),
        f"accept the terms on the page of {name.repo}, and set HF_TOKEN to a token of your account",
    )


def _snapshot(name: HubName, commit: str) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    repo = "models--" + name.repo.replace("/", "--")
    return Path(HF_HUB_CACHE) / repo / "snapshots" / commit


def _has_all(snapshot: Path, files: Mapping[str, RepoSibling], pulling: Pulling) -> bool:
    """Whether the hub's cache has all files, of the right size and, where one is known, digest."""
    total = 0
    for path, file in files.items():
        size = file.size if file.lfs is None else file.lfs.size
        try:
            found = (snapshot / path).stat().st_size
        except OSError:
            return False
        if size is not None and found != size:
            return False
        total += found
    pulling.reporter.stage("verifying", total)
    for path, file in files.items():
        digest = digest_of(snapshot / path, pulling.reporter.more)
        if file.lfs is not None and digest != file.lfs.sha256:
            pulling.reporter.say(f"{path}: the copy in the hub's cache is damaged; not used")
            return False
    return True


def _referenced(
    name: HubName,
    choice: Choice,
    folder: Path,
    pulling: Pulling,
    commit: str | None,
    licence: str | None = None,
) -> Found:
    files = pulling.reference({path: folder / path for path in choice.files})
    pulling.reporter.say(f"{name} is in the hub's cache and referenced there: nothing is copied")
    root = folder if choice.entry is None else folder / choice.entry
    return Found(hub_default(name), str(name), files, choice.entry, str(root), commit, licence)


def _offline(name: HubName, pulling: Pulling, why: str) -> Found:
    folder, listed = cached_files(name, why)
    pulling.reporter.say(f"{name}: using the hub's cache: {why.partition(',')[0]}")
    return _referenced(name, choose_any(name, listed), folder, pulling, folder.name)


def _licence(info: ModelInfo) -> str | None:
    card: Any = info.card_data
    found = card.get("license") if card is not None else None
    if isinstance(found, str) and found != "other":
        return found
    named = card.get("license_name") if card is not None else None
    return named if isinstance(named, str) else found if isinstance(found, str) else None
