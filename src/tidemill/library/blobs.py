"""Files of the library, stored once by digest, and folders of links that give them their names.

    blobs/sha256-HEX      a complete, verified file, never changed
    views/HEX/            a model's folder: links to blobs and to referenced files
    partial/KEY...        unfinished downloads

A blob appears by a rename after its digest was verified, so every blob is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.library.manifest import StoredFile

_PREFIX = "sha256-"
_READ_BYTES = 2**20


class BlobGone(TidemillError):
    """A blob that was there has been removed, by another pull or a removal.

    Args:
        what: the model or file that needs it.
        remedy: what to do about it.
    """

    def __init__(self, what: str, remedy: str = "pull it again") -> None:
        super().__init__(
            ErrorKind.MODEL_FILE, f"{what}: a file of it is gone; {remedy}", param="model"
        )


class Blobs:
    """The files of a library.

    Args:
        home: its folder; folders in it are made when something is written.
    """

    def __init__(self, home: Path) -> None:
        self.folder = home / "blobs"
        self.views = home / "views"
        self.partial = home / "partial"

    def path(self, sha256: str) -> Path:
        """Where the blob of a digest is, or would be."""
        return self.folder / (_PREFIX + sha256)

    def has(self, sha256: str) -> bool:
        """Whether a blob is there."""
        return self.size(sha256) is not None

    def size(self, sha256: str) -> int | None:
        """Bytes of a blob; None where there is none (another process may remove one)."""
        try:
            return os.stat(self.path(sha256)).st_size
        except OSError:
            return None

    def keep(self, file: Path, sha256: str) -> None:
        """Make a complete, verified file of this file system a blob; `file` is gone then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
        os.chmod(file, 0o444)
        os.replace(file, self.path(sha256))
        sync_folder(self.folder)

    def copied(self, file: StoredFile) -> StoredFile:
        """A referenced file, whose digest is known, as a blob."""
        assert file.at is not None
        if not self.has(file.sha256):
            self.partial.mkdir(parents=True, exist_ok=True)
            copy = self.partial / f"copy-{os.urandom(8).hex()}"
            try:
                shutil.copyfile(file.at, copy)
                self.keep(copy, file.sha256)
            finally:
                copy.unlink(missing_ok=True)
        return msgspec.structs.replace(file, at=None, mtime_ns=None)

    def view(self, files: Sequence[StoredFile]) -> Path:
        """The folder of links to a model's files; made if it is not there.

        A view's name is a digest of its links, so that equal models share one.
        """
        links = sorted((file.path, self._target(file)) for file in files)
        name = hashlib.sha256(msgspec.json.encode(links)).hexdigest()[:32]
        folder = self.views / name
        if not folder.is_dir():
            import tempfile

            self.views.mkdir(parents=True, exist_ok=True)
            making = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self.views))
            making.chmod(0o755)
            for path, target in links:
                link = making / path
                link.parent.mkdir(parents=True, exist_ok=True)
                os.symlink(target, link)
            try:
                os.rename(making, folder)
            except OSError:  # another process made it meanwhile
                shutil.rmtree(making, ignore_errors=True)
                if not folder.is_dir():
                    raise
        return folder

    def _target(self, file: StoredFile) -> str:
        if file.at is not None:
            return file.at
        up = "../" * (2 + file.path.count("/"))
        return f"{up}{self.folder.name}/{_PREFIX}{file.sha256}"

    def remove(self, digests: Iterable[str]) -> int:
        """Remove blobs; the bytes that this frees."""
        freed = 0
        for digest in digests:
            with contextlib.suppress(FileNotFoundError):
                path = self.path(digest)
                size = os.stat(path).st_size
                os.unlink(path)
                freed += size
        return freed

    def remove_views(self, kept: Iterable[Path]) -> None:
        """Remove all views but these, and but those that are being made (a dot in the name)."""
        names = {path.name for path in kept}
        with contextlib.suppress(FileNotFoundError):
            for folder in self.views.iterdir():
                if folder.name not in names and "." not in folder.name:
                    shutil.rmtree(folder, ignore_errors=True)

    def digests(self) -> set[str]:
        """Digests of all blobs."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return set()
        return {name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)}

    def unfinished(self) -> tuple[int, int]:
        """Number of unfinished downloads, and the bytes that they take on disk."""
        count = size = 0
        with contextlib.suppress(FileNotFoundError):
            for path in self.partial.glob("*.part"):
                count += 1
                size += os.stat(path).st_blocks * 512
        return count, size


def digest_of(path: Path, on_bytes: Callable[[int], None] = lambda count: None) -> str:
    """sha256 of a file.

    Args:
        path: of a regular file.
        on_bytes: called with the bytes read since the last call; it may raise to stop.
    """
    digest = hashlib.sha256()
    buffer = bytearray(_READ_BYTES)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            on_bytes(count)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power failure, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
