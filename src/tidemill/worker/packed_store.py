"""A folder of packed weights: one file per entry, bounded in size, shared by processes.

An entry is `KEY.packed`: a header, then from byte `DATA_OFFSET` on the data that a backend would
otherwise compute at every start. It is written to a temporary file, synced and renamed, so that no
reader sees a partial entry. It never changes afterwards, so a mapping stays valid when the entry is
replaced or removed. `KEY.sources` lists the identities of files on disk that are known to have the
content it was made from. Writers are serialized by a lock on the folder; readers need none. An
entry's modification time is the time of its last use, and the least recently used entries are
evicted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Data begins on a huge page boundary and is written in whole huge pages, so that Linux can map the
# page
# cache in huge pages.
DATA_OFFSET = 2 * 2**20
CHUNK = 8 * 2**20

# The size bound: a fraction of the disk space that is free or used by entries, and an absolute
# maximum.
DISK_SHARE = 0.5
MAX_BYTES = 64 * 2**30

_MAGIC = b"tidemill packed\n"
_VERSION = 1
_LENGTH_BYTES = 4
_DIGEST_BYTES = 16
_HEADER_BYTES = 64 * 2**10  # maximum
_KNOWN_SOURCES = 8
_STALE_SECONDS = 60.0

# A file's identity on disk: device, inode, size, times of modification and of change, per file.
Stamp = tuple[tuple[int, ...], ...]


class CorruptEntry(Exception):
    """An entry that cannot be used; the message is the reason."""


class StoreFull(Exception):
    """An entry that does not fit; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry's header.

    Attributes:
        key: the lookup key.
        model: display name of the model.
        content: hexadecimal digest of the files it was made from.
        nbytes: size of its data.
        checksum: of its data.
        note: a note for users on how the data was made.
    """

    key: str
    model: str
    content: str
    nbytes: int
    checksum: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry as listed for users: model, bytes on disk, time of last use in seconds since the
    epoch."""

    model: str
    nbytes: int
    used: float


def default_folder() -> Path:
    """`tidemill/packed` under the user's cache directory."""
    root = os.environ.get("XDG_CACHE_HOME")
    base = Path(root) if root and os.path.isabs(root) else Path.home() / ".cache"
    return base / "tidemill" / "packed"


class PackedStore:
    """The entries of a folder, which is created at the first write.

    Args:
        folder: its path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, key: str) -> tuple[Entry, memoryview] | None:
        """An entry's header and its data, mapped read-only; None for a missing entry.

        Raises:
            CorruptEntry: it is truncated, of another format, or its header is invalid. The data is
                not verified: see `Entry.checksum`.
        """
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                entry = _read_header(file.read(_HEADER_BYTES))
                size = os.fstat(file.fileno()).st_size
                if entry.key != key or size != DATA_OFFSET + entry.nbytes:
                    raise CorruptEntry(f"{path} has an unexpected size ({size} bytes) or key")
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CorruptEntry(f"{path} cannot be read: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # advice only
                mapped.madvise(mmap.MADV_HUGEPAGE)
        return entry, memoryview(mapped)[DATA_OFFSET:]

    def open_file(self, entry: Entry) -> tuple[int, int] | None:
        """(descriptor, offset) of the file with an entry's data; None if it is no longer there. The
        caller closes it."""
        try:
            file = os.open(self._path(entry.key), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if _read_header(os.pread(file, _HEADER_BYTES, 0)) == entry:
                return file, DATA_OFFSET
        except (CorruptEntry, OSError):
            pass
        os.close(file)
        return None

    def unnamed(self, data: memoryview) -> int:
        """Descriptor of a file in the folder with this data, and without a name: its space is free
        again when it is closed and unmapped. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file, path = tempfile.mkstemp(".part", dir=self.folder)
        try:
            Path(path).unlink(missing_ok=True)
            _write_all(file, data, 0)
        except BaseException:
            os.close(file)
            raise
        return file

    def used(self, key: str) -> None:
        """Record that an entry was used now."""
        with contextlib.suppress(OSError):
            os.utime(self._path(key))

    def write(self, entry: Entry, chunks: Iterable[memoryview]) -> None:
        """Write an entry, replacing one of the same key and evicting others if needed. Hold the
        lock.

        Args:
            entry: its header.
            chunks: its data, `entry.nbytes` in all.

        Raises:
            StoreFull: it exceeds the size bound of the folder.
            OSError: a system call fails.
        """
        self._make_room(entry)
        part = self.folder / f"{entry.key}.part"
        try:
            with open(part, "wb", buffering=0) as file:
                descriptor = file.fileno()
                # Preallocation detects a full disk early and reduces fragmentation.
                _reserve(descriptor, DATA_OFFSET + entry.nbytes)
                at = DATA_OFFSET
                for chunk in chunks:
                    at += _write_all(descriptor, chunk, at)
                _write_all(descriptor, memoryview(_header(entry)), 0)
                os.fsync(descriptor)
            os.replace(part, self._path(entry.key))
            self._sync_folder()
        finally:
            part.unlink(missing_ok=True)

    def remember(self, key: str, content: str, stamp: Stamp) -> None:
        """Record that files of this identity have this content. Raises OSError."""
        known = [list(map(list, stamp))]
        known += [other for other in self._sources(key, content) if other != known[0]]
        text = json.dumps({"content": content, "files": known[:_KNOWN_SOURCES]})
        part = self.folder / f"{key}.sources.{os.getpid()}.part"
        part.write_text(text)
        os.replace(part, self.folder / f"{key}.sources")

    def is_known(self, key: str, content: str, stamp: Stamp) -> bool:
        """Whether files of this identity are known to have this content."""
        return list(map(list, stamp)) in self._sources(key, content)

    def remove(self, key: str) -> None:
        """Remove an entry; existing mappings stay valid."""
        for name in (f"{key}.packed", f"{key}.sources"):
            with contextlib.suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)

    def entries(self) -> list[Listed]:
        """All entries, most recently used first; damaged ones are marked as damaged."""
        found = []
        for path, status in self._files():
            try:
                with open(path, "rb") as file:
                    name = _read_header(file.read(_HEADER_BYTES)).model
            except (CorruptEntry, OSError, ValueError):
                name = "(damaged)"
            found.append(Listed(name, status.st_blocks * 512, status.st_mtime))
        return found[::-1]

    def clear(self) -> int:
        """Remove all entries and the temporary files of interrupted writers; returns the bytes
        freed."""
        freed = 0
        with self.locked():
            for path, status in self._files():
                freed += status.st_blocks * 512
                self.remove(path.stem)
            self._sweep()
        return freed

    @contextlib.contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of writers, creating the folder if needed. Without `wait`, yields whether
        it was acquired.

        Raises:
            OSError: the folder cannot be created or locked.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(lock)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.packed"

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Files of the entries, least recently used first."""
        found = []
        for path in self.folder.glob("*.packed"):
            with contextlib.suppress(OSError):
                found.append((path, path.stat()))
        return sorted(found, key=lambda each: each[1].st_mtime)

    def _make_room(self, entry: Entry) -> None:
        self._sweep()
        need = DATA_OFFSET + entry.nbytes
        files = [(path, status) for path, status in self._files() if path.stem != entry.key]
        held = sum(status.st_blocks * 512 for _, status in files)
        free = shutil.disk_usage(self.folder).free
        bound = min(MAX_BYTES, int((free + held) * DISK_SHARE))
        if need > bound:
            raise StoreFull(
                f"{need / 2**30:.2f} GiB exceed the limit of {bound / 2**30:.2f} GiB there"
                f" ({DISK_SHARE:.0%} of the free space, at most {MAX_BYTES // 2**30} GiB)"
            )
        for path, status in files:
            if held + need <= bound:
                return
            self.remove(path.stem)
            held -= status.st_blocks * 512

    def _sweep(self) -> None:
        """Remove temporary files of interrupted writers. The caller holds the lock, so no writer is
        active."""
        for part in self.folder.glob("*.part"):
            with contextlib.suppress(OSError):
                # Source lists are written without the lock, which takes a moment.
                if ".sources." in part.name and time.time() - part.stat().st_mtime < _STALE_SECONDS:
                    continue
                part.unlink()

    def _sources(self, key: str, content: str) -> list[Any]:
        try:
            found = json.loads((self.folder / f"{key}.sources").read_text())
            known = found["files"] if found["content"] == content else []
        except (OSError, ValueError, LookupError, TypeError):
            return []
        return known if isinstance(known, list) else []

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def _write_all(descriptor: int, data: memoryview, at: int) -> int:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], at + written)
    return written


def _header(entry: Entry) -> bytes:
    text = json.dumps(
        {
            "version": _VERSION,
            "key": entry.key,
            "model": entry.model,
            "content": entry.content,
            "nbytes": entry.nbytes,
            "checksum": f"{entry.checksum:016x}",
            "note": entry.note,
        }
    ).encode()
    digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
    return _MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + digest + text


def _read_header(data: bytes) -> Entry:
    """Parse a header; raises CorruptEntry."""
    start = len(_MAGIC) + _LENGTH_BYTES + _DIGEST_BYTES
    length = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + _LENGTH_BYTES], "little")
    text = data[start : start + length]
    digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
    if not data.startswith(_MAGIC) or data[start - _DIGEST_BYTES : start] != digest:
        raise CorruptEntry("its header is damaged")
    try:
        found = json.loads(text)
        if found["version"] != _VERSION:
            raise CorruptEntry(f"its version is {found['version']}")
        return Entry(
            str(found["key"]),
            str(found["model"]),
            str(found["content"]),
            int(found["nbytes"]),
            int(found["checksum"], 16),
            found["note"],
        )
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptEntry(f"its header is damaged: {error!r}") from error
