"""Headers of a hub model without its weights: small files whole, of weight files the beginning.

The result is a folder that `loading` opens like a downloaded one: weight files have their full size
and are sparse, so that what was not fetched takes no disk and reads as zeros. It is good for
everything that reads headers alone, and for nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.errors import TidemillError, model_file_error
from tidemill.library import http
from tidemill.library.manifest import is_inside
from tidemill.loading.formats.gguf import header_length as gguf_length
from tidemill.loading.formats.safetensors import header_length as safetensors_length
from tidemill.loading.hub import Say, cached_files, error_kind, refusal
from tidemill.loading.hub_choice import Choice, choose
from tidemill.loading.hub_name import HubName

if TYPE_CHECKING:
    import httpx
    from huggingface_hub.hf_api import RepoSibling

_TIMEOUT_SECONDS = 20.0
# Of a weight file at first; headers of most safetensors fit, vocabularies in GGUF files do not.
_FIRST_BYTES = 2**18
_MAX_HEADER_BYTES = 2**28
_WEIGHTS = {".safetensors": safetensors_length, ".gguf": gguf_length}
# Not read by anything that looks at headers, and megabytes long.
_TEXT_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model")


class _Unreachable(Exception):
    """The hub cannot be asked; the message is the reason."""


@dataclass(frozen=True, slots=True)
class FetchedHeaders:
    """A model's headers.

    Attributes:
        path: the folder, or the GGUF file in it.
        fetched: bytes that were transferred.
        files: bytes of all files of the model, as the hub lists them.
    """

    path: Path
    fetched: int
    files: int


def fetch_headers(name: HubName, folder: Path, say: Say) -> FetchedHeaders:
    """Fetch what describes a hub model into an empty folder.

    Where the hub cannot be reached, its cache is looked at.

    Args:
        name: the model.
        folder: where; it exists.
        say: called with one line about each automatic choice.

    Raises:
        TidemillError: NOT_FOUND or UNAVAILABLE as for a download; MODEL_FILE for a header that is
            no header, or longer than 256 MiB.
    """
    try:
        commit, siblings = _listing(name)
    except _Unreachable as error:
        return _cached(name, str(error))
    choice = choose(name, [*siblings])
    if choice.note:
        say(choice.note)
    with http.client() as session:
        source = _Source(name, commit, session, say)
        for path in _needed(choice):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            source.fetch(path, _size(siblings[path]), target)
    entry = folder if choice.entry is None else folder / choice.entry
    files = sum(_size(siblings[path]) or 0 for path in choice.files)
    return FetchedHeaders(entry, source.fetched, files)


def _needed(choice: Choice) -> Sequence[str]:
    return [path for path in choice.files if not path.endswith((*_TEXT_FILES, ".tiktoken"))]


def _listing(name: HubName) -> tuple[str, dict[str, RepoSibling]]:
    """The commit that a name means, and its files."""
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        raise _Unreachable("HF_HUB_OFFLINE is set, unset it")
    try:
        info = huggingface_hub.HfApi().model_info(
            name.repo, revision=name.revision, files_metadata=True, timeout=_TIMEOUT_SECONDS
        )
    except Exception as error:
        known = refusal(name, error)
        if known is not None:
            raise known from error
        why = f"the hub cannot be reached ({error_kind(error)}), check the network"
        raise _Unreachable(why) from error
    found = {file.rfilename: file for file in info.siblings or () if is_inside(file.rfilename)}
    return info.sha or name.revision or "main", found


def _cached(name: HubName, why: str) -> FetchedHeaders:
    folder, listed = cached_files(name, why)
    choice = choose(name, listed)
    files = sum((folder / path).stat().st_size for path in choice.files)
    return FetchedHeaders(folder if choice.entry is None else folder / choice.entry, 0, files)


def _size(file: RepoSibling) -> int | None:
    return file.size if file.lfs is None else file.lfs.size


class _Source:
    """Reads files of one commit of a repository, whole or from their beginning.

    Attributes:
        fetched: bytes so far.
    """

    def __init__(self, name: HubName, commit: str, session: httpx.Client, say: Say) -> None:
        self.fetched = 0
        self._name = name
        self._commit = commit
        self._session = session
        self._say = say

    def fetch(self, path: str, size: int | None, target: Path) -> None:
        """Write a file's whole content, or a weight file's header and its full size."""
        measure = _WEIGHTS.get(target.suffix)
        if measure is None or size is None:
            target.write_bytes(self._get(path, None))
            return
        wanted = min(size, _FIRST_BYTES)
        content = bytearray()
        while True:
            content += self._get(path, (len(content), wanted))
            length = measure(memoryview(content))
            if length is not None and length <= len(content):
                break
            if len(content) >= size:
                break  # truncated: the parser says how
            # Twice as much at least, or as much as the header says of itself.
            wanted = min(size, max(2 * wanted, length or 0))
            if wanted > _MAX_HEADER_BYTES:
                raise model_file_error(f"{path}: its header takes more than 256 MiB")
        with target.open("wb") as file:
            file.write(content)
            file.truncate(size)

    def _get(self, path: str, span: tuple[int, int] | None) -> bytes:
        """Bytes of a file: all, or a range."""
        import httpx
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = hf_hub_url(self._name.repo, path, revision=self._commit)
        headers = dict(build_hf_headers())
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        patience = http.Patience(path, threading.Event(), self._say)
        while True:
            try:
                content = self._read(url, path, headers, span)
            except http.Interrupted as error:
                patience.wait(error)
            except httpx.TransportError as error:
                failure = http.as_interrupted(error, url)
                if isinstance(failure, TidemillError):
                    raise failure from error
                patience.wait(failure)
            else:
                self.fetched += len(content)
                return content

    def _read(
        self, url: str, path: str, headers: dict[str, str], span: tuple[int, int] | None
    ) -> bytes:
        with self._session.stream("GET", url, headers=headers) as response:
            http.check_response(response, path, f"accept the terms of {self._name.repo}")
            if span is None:
                return response.read()
            begin, end = span
            if response.status_code == 206:
                content = response.read()
            else:  # a host without ranges: what precedes is skipped, what follows is not read
                read = bytearray()
                for piece in response.iter_raw():
                    read += piece
                    if len(read) >= end:
                        break
                content = bytes(read[begin:end])
        if len(content) != end - begin:
            raise http.Interrupted(f"{http.host(url)} sent too little of {path}")
        return content
