"""DiskTier: a folder of blocks that outlives the process, bounded in size, shared by engines.

`FOLDER/IDENTITY/XX/DIGEST` is the record of one block (`transfer.record`), XX the first byte of its
digest, or of what stands for that where records are encrypted (`tiers.sealed`). A block is written
under another name and renamed. Nothing is synced: what a crash of the machine leaves torn has a
wrong checksum, which is found when it is read, and then it is removed.
So engines of one machine use the folder side by side, and readers and writers need no lock.

A record's time of modification says when it should leave: the time of its last use, and later the
more often it was used. Records of all models in the folder leave in this order once they exceed the
bound together; whoever removes some holds a lock.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidemill.backends.base import Checksum, UInt8
from tidemill.base.clock import wall
from tidemill.base.log import get_logger
from tidemill.contract.moves import Name, TierFigures
from tidemill.transfer.record import Damaged, checksum_in, header
from tidemill.worker.tiers.record_files import PlainFiles, RecordFiles

_log = get_logger(__name__)

DISK_SHARE = 0.25
MAX_BYTES = 64 * 2**30
"""The bound that is taken where none is set: a share of what is free or used by it, at most this
much."""

LEAST_BYTES_PER_RECORD = 4096
LOOK_SHARE = 0.05
"""After this share of the bound was written, the folder is looked through again."""

KEPT_SHARE = 0.9
"""Once the bound is exceeded, so much of it remains."""

USE_SECONDS = 3600.0
MOST_USES = 24
"""Each use lets a record stay as if it came so much later, up to so many uses."""

STALE_SECONDS = 3600.0
_PART = ".part"
_NAME_BYTES = 16


class DiskTier:
    """See the module docstring. One thread reads and writes; any may ask for `has`.

    Args:
        folder: the store, made where it is missing.
        limit: bytes that all records in it may take; None: chosen.
        identity: of the model; see `record.identity_of`.
        nbytes: bytes of a block.
        checksum: of a block's bytes, 64 bits.
        files: how records lie in files.

    Attributes:
        encrypted: by `files`.

    Raises:
        OSError: the folder cannot be made or written.
    """

    def __init__(
        self,
        folder: Path,
        limit: int | None,
        identity: bytes,
        nbytes: int,
        checksum: Checksum,
        files: RecordFiles | None = None,
    ) -> None:
        self.folder = folder
        self._files = files or PlainFiles()
        self.encrypted = files is not None
        identity = self._files.identity(identity)
        self._own = folder / identity.hex()[:32]
        self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._identity = identity
        self._nbytes = nbytes
        self._checksum = checksum
        self._held: int | None = None  # bytes of all records; unknown before a look
        self._uncounted = 0  # bytes written here since the last look
        self.limit = limit or self._chosen_limit()
        self._uses: dict[bytes, int] = {}
        self._removed: list[bytes] = []
        self._saved = self._damaged = self._failed = 0

    def _chosen_limit(self) -> int:
        return min(MAX_BYTES, int(DISK_SHARE * (self.free() + self.held())))

    def free(self) -> int:
        """Bytes that its disk has left."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def _path(self, digest: bytes) -> Path:
        name = self._files.name_of(digest).hex()
        return self._own / name[:2] / name

    def has(self, digest: bytes) -> bool:
        """Whether there is a record of this digest, good or not."""
        return os.path.exists(self._path(digest))

    def save(self, name: Name, data: UInt8) -> bool:
        """Write a block's record; False where that fails, which is logged once."""
        path = self._path(name[0])
        head = header(self._identity, name, self._nbytes, self._checksum(data))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file, part = tempfile.mkstemp(_PART, dir=path.parent)
            try:
                with os.fdopen(file, "wb", buffering=0) as out:
                    self._files.write(out.fileno(), head, data)
                os.rename(part, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(part)
                raise
        except OSError as error:
            if not self._failed:
                _log.warning("KV blocks cannot be written to %s: %s", self.folder, error)
            self._failed += 1
            return False
        self._saved += 1
        self._count(_size(self._files.size(len(head), self._nbytes)))
        return True

    def _count(self, more: int) -> None:
        """Count bytes just written. Others write as well: now and then all is counted again."""
        self._uncounted += more
        if self._held is None or self._uncounted > LOOK_SHARE * self.limit:
            self._held, self._uncounted = None, 0
        else:
            self._held += more
        if self.held() > self.limit:
            self.make_room()

    def load(self, name: Name, out: UInt8) -> bool:
        """Read a block's bytes into `out`, which holds garbage where that fails; False without a
        record, or if it is damaged, which is counted; then it is removed."""
        path = self._path(name[0])
        head = bytearray(len(header(self._identity, name, self._nbytes, 0)))
        try:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size != self._files.size(len(head), self._nbytes):
                    raise Damaged(f"its size is {size} bytes")
                self._files.read(file.fileno(), head, out)
            if self._checksum(out) != checksum_in(head, self._identity, name, self._nbytes):
                raise Damaged("its checksum does not match its bytes")
            self._used(path, name[0])
        except FileNotFoundError:
            return False
        except (OSError, Damaged) as error:
            self._damaged += 1
            _log.warning("a KV block of %s is not used and removed: %s", self.folder, error)
            with suppress(OSError):
                os.unlink(path)
            return False
        return True

    def digests(self) -> Iterator[bytes]:
        """Of all records of this model, as far as their names say."""
        for part in _entries(os.fspath(self._own)):
            for path in _entries(part):
                with suppress(ValueError):
                    name = bytes.fromhex(os.path.basename(path))
                    if len(name) == _NAME_BYTES:
                        yield self._files.digest_of(name)

    def take_removed(self) -> tuple[bytes, ...]:
        """The digests of this model's records that were removed here since the last call."""
        removed, self._removed = self._removed, []
        return tuple(removed)

    def _used(self, path: Path, digest: bytes) -> None:
        uses = self._uses[digest] = min(MOST_USES, self._uses.get(digest, 0) + 1)
        if len(self._uses) > 2**16:
            self._uses.pop(next(iter(self._uses)))
        until = wall() + USE_SECONDS * (uses - 1)
        with suppress(OSError):
            os.utime(path, (until, until))

    def held(self) -> int:
        """Bytes of all records in the folder, as far as is known: others write, too."""
        if self._held is None:
            self._held = sum(size for _, size, _ in self._records())
        return self._held

    def make_room(self) -> None:
        """Remove records until they are well within the bound, unless somebody else does."""
        with self._lock() as mine:
            if not mine:
                return
            own, records = os.fspath(self._own), sorted(self._records())
            held = sum(size for _, size, _ in records)
            for _, size, path in records:
                if held <= KEPT_SHARE * self.limit:
                    break
                with suppress(OSError):
                    os.unlink(path)
                    held -= size
                    if os.path.dirname(os.path.dirname(path)) == own:
                        name = bytes.fromhex(os.path.basename(path))
                        self._removed.append(self._files.digest_of(name))
            self._held = held
            self._drop_empty()

    def _records(self) -> Iterator[tuple[float, int, str]]:
        """(time, bytes on disk, path) of every record, whosesoever it is. What a writer that died
        left is removed."""
        now = wall()
        for path in _files(self.folder):
            with suppress(OSError):
                found = os.stat(path)
                if not path.endswith(_PART):
                    yield found.st_mtime, _size(found.st_size), path
                elif found.st_mtime < now - STALE_SECONDS:
                    os.unlink(path)

    def _drop_empty(self) -> None:
        """Remove the folders of models of which nothing is left."""
        for model in os.scandir(self.folder):
            if model.is_dir() and model.name != self._own.name:
                for part in os.scandir(model.path):
                    with suppress(OSError):
                        os.rmdir(part.path)
                with suppress(OSError):
                    os.rmdir(model.path)

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        file = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True
        finally:
            os.close(file)

    def figures(self, blocks: int, nbytes: int, seconds: float) -> TierFigures:
        """What it holds, and counters; with those of what was brought back."""
        return TierFigures(
            held_bytes=self._held or 0,
            saved_blocks=self._saved,
            loaded_blocks=blocks,
            loaded_bytes=nbytes,
            load_seconds=seconds,
            damaged_blocks=self._damaged,
            failed_saves=self._failed,
        )


def _size(nbytes: int) -> int:
    """Bytes that a record takes on disk."""
    return -(-nbytes // LEAST_BYTES_PER_RECORD) * LEAST_BYTES_PER_RECORD


def _files(folder: Path) -> Iterator[str]:
    """The files of all models' folders."""
    for model in _entries(os.fspath(folder)):
        for part in _entries(model):
            yield from _entries(part)


def _entries(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return [entry.path for entry in found]
    except OSError:  # a file, or it is gone
        return []
