"""Files that a client sends: received under their digest, and put together as a model."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.library.blobs import Blobs
from tidemill.library.catalog import Library
from tidemill.library.fetch import check_space, disk_error
from tidemill.library.manifest import Manifest, StoredFile, is_digest, is_inside
from tidemill.library.pulling import Found
from tidemill.loading.adapters.layout import CONFIG, PICKLED, WEIGHTS
from tidemill.loading.formats.gguf import MAGIC
from tidemill.loading.hub_choice import gguf_models
from tidemill.loading.kind import check_model

_ALGORITHM = "sha256:"


def digest_in(text: str, param: str) -> str:
    """The hexadecimal digits of a digest as clients write it: ``sha256:...``.

    Raises:
        TidemillError: BAD_REQUEST naming `param`.
    """
    digits = text.removeprefix(_ALGORITHM).removeprefix("sha256-")
    if not is_digest(digits):
        raise bad_request(param, f"{param} must be sha256: and 64 hexadecimal digits in lower case")
    return digits


class Upload:
    """One file on its way into the library; it becomes a blob when it is complete and right.

    Everything blocks: call it in a thread, one call at a time.

    Args:
        blobs: where it goes.
        sha256: its digest.
        size: its bytes, where they are known.

    Raises:
        TidemillError: RESOURCE: the disk has no space for it.
    """

    def __init__(self, blobs: Blobs, sha256: str, size: int | None) -> None:
        self._blobs = blobs
        self._sha256 = sha256
        self._digest = hashlib.sha256()
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        blobs.partial.mkdir(parents=True, exist_ok=True)
        if size is not None:
            check_space(blobs.partial, size)
        # `clean` removes what a killed server leaves; a name of its own for each: two clients may
        # send the same file.
        self._path = blobs.partial / f"upload-{sha256[:16]}-{os.urandom(8).hex()}.part"
        self._file = open(self._path, "xb")  # noqa: SIM115  # open until `close`

    def write(self, data: bytes) -> None:
        """The next bytes.

        Raises:
            TidemillError: RESOURCE: the disk is full.
        """
        assert self._file is not None
        self._digest.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise disk_error(error, self._blobs.partial) from error

    def finish(self) -> None:
        """All bytes are there: keep the file.

        Raises:
            TidemillError: BAD_REQUEST: it has another digest; RESOURCE: the disk is full.
        """
        assert self._file is not None and self._path is not None
        found = self._digest.hexdigest()
        if found != self._sha256:
            raise bad_request(
                "digest",
                f"the file has the digest sha256:{found}, not sha256:{self._sha256}; nothing was "
                "kept: send it again",
            )
        try:
            self._file.close()
            self._blobs.keep(self._path, self._sha256)
        except OSError as error:
            raise disk_error(error, self._blobs.partial) from error

    def close(self) -> None:
        """Remove what is not complete."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def uploaded(files: Mapping[str, str], library: Library) -> Found:
    """A model of files that were received.

    Args:
        files: their names in the model -> their digests as clients write them.
        library: that has them.

    Raises:
        TidemillError: BAD_REQUEST naming ``files`` for a wrong name and for files that are no
            model; NOT_FOUND for a file that was not received.
    """
    stored = _stored(files, library, "files")
    entry = None
    names = [file.path for file in stored]
    if all(name.endswith(".gguf") for name in names):
        models = gguf_models(names)
        if len(models) != 1 or len(*models.values()) != len(names):
            raise bad_request("files", f"files: send one GGUF file, or all its parts; got {names}")
        (entry,) = models
    found = Found("", "", stored, entry)
    _check(library.path(as_manifest(found)))
    return found


def uploaded_adapter(files: Mapping[str, str], library: Library) -> tuple[StoredFile, ...]:
    """The files of a LoRA that were received: PEFT's two, or GGUF files, each an adapter.

    Args:
        files, library: see `uploaded`.

    Raises:
        TidemillError: BAD_REQUEST naming ``adapters`` for a wrong name and for files that are no
            adapter; NOT_FOUND for a file that was not received.
    """
    stored = _stored(files, library, "adapters")
    names = {file.path for file in stored}
    folder = CONFIG in names and len(names & {WEIGHTS, PICKLED}) == 1
    if not folder and not all(name.endswith(".gguf") for name in names):
        raise bad_request(
            "adapters",
            f"adapters: send {CONFIG} and {WEIGHTS}, or GGUF files of LoRA; got {sorted(names)}"[
                :400
            ],
        )
    for file in stored:
        with open(library.blobs.path(file.sha256), "rb") as opened:
            begins = opened.read(len(MAGIC))
        if file.path.endswith(".gguf") and begins != MAGIC:
            raise bad_request("adapters", f"adapters: {file.path} is no GGUF file")
    return stored


def _stored(files: Mapping[str, str], library: Library, param: str) -> tuple[StoredFile, ...]:
    """Files that were received, under their names; see `uploaded`."""
    stored = []
    for name, digest in sorted(files.items()):
        if not is_inside(name):
            raise bad_request(param, f"{param}: {name[:64]!r} is no name of a file in a folder")
        digits = digest_in(digest, param)
        try:
            size = os.stat(library.blobs.path(digits)).st_size
        except OSError:
            raise TidemillError(
                ErrorKind.NOT_FOUND,
                f"{param}: {name[:64]!r} was not received: send it first, to "
                f"/api/blobs/{_ALGORITHM}{digits}",
                param=param,
            ) from None
        stored.append(StoredFile(name, size, digits))
    return tuple(stored)


def _check(path: Path) -> None:
    """Raise BAD_REQUEST for what is no model: who sent it can mend it."""
    try:
        check_model(path)
    except TidemillError as error:
        raise bad_request("files", f"files: {error.message}") from None
    if path.is_file():
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise bad_request("files", f"files: {path.name} is no GGUF file")


def as_manifest(found: Found) -> Manifest:
    """A manifest of files that have no name in the library yet."""
    return Manifest(found.name, found.source, found.files, found.entry, found.root, found.revision)
