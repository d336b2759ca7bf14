"""A folder of packed weights: entries of one file each, bounded, shared by processes.

An entry is `KEY.packed`: a header, then from byte `DATA_OFFSET` on what a backend would otherwise
compute again at every start. It is written beside its place, synced and renamed, so that no reader
ever sees half of one, and is never changed afterwards: a mapping of it stays what it was even when
the entry is replaced or removed. `KEY.sources` beside it says which files, as they lie on disk, are
known to have the content it was made of. Writers take turns by a lock on the folder; readers need
none. An entry's time of modification is when it was last used: the oldest make room.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Data begins on a huge page and is written in whole ones: Linux then maps the page cache in them.
DATA_OFFSET = 2 * 2**20
CHUNK = 8 * 2**20

# The bound: of what the folder's disk has left beside it, and in any case.
DISK_SHARE = 0.5
MAX_BYTES = 64 * 2**30

_MAGIC = b"tidemill packed\n"
_VERSION = 1
_LENGTH_BYTES = 4
_DIGEST_BYTES = 16
_HEADER_BYTES = 64 * 2**10  # at most
_KNOWN_SOURCES = 8
_STALE_SECONDS = 60.0

# A file's identity on disk: device, inode, size, times of modification and of change, per file.
Stamp = tuple[tuple[int, ...], ...]


class CorruptEntry(Exception):
    """An entry that cannot be used, and why."""


class StoreFull(Exception):
    """An entry that finds no room, and why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry's header.

    Attributes:
        key: what it was asked for by.
        model: the name of the model, for people.
        content: hexadecimal digest of the files it was made of.
        nbytes: of its data.
        checksum: of its data.
        note: what a person should know of how the data were made.
    """

    key: str
    model: str
    content: str
    nbytes: int
    checksum: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry as a person sees it: model, bytes on disk, seconds of the epoch of its last use."""

    model: str
    nbytes: int
    used: float


def default_folder() -> Path:
    """`tidemill/packed` under the user's cache directory."""
    root = os.environ.get("XDG_CACHE_HOME")
    base = Path(root) if root and os.path.isabs(root) else Path.home() / ".cache"
    return base / "tidemill" / "packed"


class PackedStore:
    """The entries of a folder, which is made when the first is written.

    Args:
        folder: where.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, key: str) -> tuple[Entry, memoryview] | None:
        """An entry's header and its data, mapped read-only; None when there is none.

        Raises:
            CorruptEntry: it is cut short, not one of ours, or its header does not add up. The data
                is not looked at: that is what `Entry.checksum` is for.
        """
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                entry = _read_header(file.read(_HEADER_BYTES))
                size = os.fstat(file.fileno()).st_size
                if entry.key != key or size != DATA_OFFSET + entry.nbytes:
                    raise CorruptEntry(f"{path} has {size} bytes, or is another's entry")
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CorruptEntry(f"{path} cannot be read: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # advice only
                mapped.madvise(mmap.MADV_HUGEPAGE)
        return entry, memoryview(mapped)[DATA_OFFSET:]

    def used(self, key: str) -> None:
        """Note that an entry was used now."""
        with contextlib.suppress(OSError):
            os.utime(self._path(key))

    def write(self, entry: Entry, chunks: Iterable[memoryview]) -> None:
        """Write an entry, replacing one of the same key; others make room. Lock first.

        Args:
            entry: its header.
            chunks: its data, `entry.nbytes` in all.

        Raises:
            StoreFull: the folder's disk has no room for it.
            OSError: the system refuses.
        """
        self._make_room(entry)
        part = self.folder / f"{entry.key}.part"
        try:
            with open(part, "wb", buffering=0) as file:
                descriptor = file.fileno()
                # Taken at once: a full disk is known now, and the file lies in few pieces.
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
        """Note that files of this identity have this content. Raises OSError."""
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
        """Remove an entry; whoever has it mapped keeps it."""
        for name in (f"{key}.packed", f"{key}.sources"):
            with contextlib.suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)

    def entries(self) -> list[Listed]:
        """All entries, the one used last first; damaged ones as such."""
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
        """Remove every entry and what broken writers left; returns the bytes given back."""
        freed = 0
        with self.locked():
            for path, status in self._files():
                freed += status.st_blocks * 512
                self.remove(path.stem)
            self._sweep()
        return freed

    @contextlib.contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[bool]:
        """The turn to write, made the folder if need be; without `wait`, whether it is ours.

        Raises:
            OSError: the folder cannot be made or locked.
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
        """Entries' files, the one unused for longest first."""
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
                f"{need / 2**30:.2f} GiB are more than the {bound / 2**30:.2f} GiB that may be kept"
                f" there ({DISK_SHARE:.0%} of what is free, at most {MAX_BYTES // 2**30} GiB)"
            )
        for path, status in files:
            if held + need <= bound:
                return
            self.remove(path.stem)
            held -= status.st_blocks * 512

    def _sweep(self) -> None:
        """Remove what writers left that ended in the middle: the lock is ours, so none writes."""
        for part in self.folder.glob("*.part"):
            with contextlib.suppress(OSError):
                # Notes of sources are written without the lock, in a moment.
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
    """Raises CorruptEntry."""
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
