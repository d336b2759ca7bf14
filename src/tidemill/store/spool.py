"""A spool: records in files, from where they are written to the database later.

A record is in the spool when `append` returns, and survives the end of the process from then on: it
lies in memory that is mapped from a file, so that the event loop waits for no disk. `sync`, which
a thread calls every second, lets it survive a power failure too.

Files (segments) have a fixed size and are numbered. A record is a frame: its length and CRC-32,
both 32 bits, then the record, padded to 8 bytes. The frame's head is written last, so that a
process that is killed leaves no half frame. A process begins with a segment of its own, whose
number is at least the time in seconds: where an older copy of the files is put back, nothing that
is written then has a place that the database has counted before.

The spool is bounded. What does not fit is lost, counted in the newest segment's head, and said.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from tidemill.base.clock import monotonic, wall
from tidemill.base.errors import config_error
from tidemill.base.log import get_logger
from tidemill.store.location import Location

log = get_logger(__name__)

SEGMENT_BYTES = 2**20
MAX_BYTES = 64 * 2**20
"""Of a spool's segments together: about 300,000 records."""

MAX_RECORD_BYTES = 2**16
_READ_BYTES = 2**18

_MAGIC = b"TMSPOOL1"
_HEAD_BYTES = 64
_LOST = struct.Struct("<Q")
_LOST_AT = 16
_FRAME = struct.Struct("<II")
_NAME = re.compile(r"(\d{10})\.seg")
_ID = re.compile(r"[0-9a-f]{16}")
RETRY_SECONDS = 1.0


class Position(NamedTuple):
    """A place between two records.

    Attributes:
        segment: number of the file; 0: before all.
        offset: in it.
    """

    segment: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Some records in the order of their writing.

    Attributes:
        records: as appended.
        start, end: where they lie.
        lost: records that were lost until `end`, since the spool was made.
        damaged: segments of which a part could not be read, within this batch.
    """

    records: list[bytes]
    start: Position
    end: Position
    lost: int
    damaged: int = 0


class Spool:
    """One spool, locked by this process.

    One thread calls it; another one may call `prepare` and `sync`.

    Args:
        folder: its own.
        lock: the descriptor that holds the lock.
        max_bytes: bound of its files together.

    Attributes:
        id: unique, also among the servers of one database.
        lost: records that did not fit, since the spool was made.
        appended: records since this was opened.
    """

    def __init__(self, folder: Path, lock: int, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.id = folder.name
        self.appended = 0
        self._lock = lock
        self._most = max(2, max_bytes // SEGMENT_BYTES)
        _remove_blank(folder)
        numbers = _numbers(folder)
        self.lost = max((_lost_of(folder, number) for number in numbers[-2:]), default=0)
        self._newest = numbers[-1] if numbers else 0
        self._begun = 0  # the first segment of this process
        self._kept = len(numbers)
        self._map: mmap.mmap | None = None
        self._used = SEGMENT_BYTES
        self._prepared: tuple[int, mmap.mmap] | None = None  # with its number
        self.retry_at = 0.0

    # -- writing -----------------------------------------------------------------------------

    def append(self, record: bytes) -> bool:
        """Add a record; False: there was no room, and it is lost."""
        size = (_FRAME.size + len(record) + 7) & ~7
        if len(record) > MAX_RECORD_BYTES:
            self.lose(1)
            return False
        if self._used + size > SEGMENT_BYTES and not self._next_segment():
            self.lose(1)
            return False
        place, segment = self._used, self._map
        assert segment is not None
        segment[place + 8 : place + 8 + len(record)] = record
        segment[place : place + 8] = _FRAME.pack(len(record), crc32(record))
        self._used = place + size
        self.appended += 1
        return True

    def lose(self, count: int) -> None:
        """Count lost records."""
        self.lost += count
        if self._map is not None:
            self._map[_LOST_AT : _LOST_AT + 8] = _LOST.pack(self.lost)

    def _following(self) -> int:
        """The number of the next segment."""
        return self._newest + 1 if self._begun else max(self._newest + 1, int(wall()))

    def _next_segment(self) -> bool:
        if self._kept >= self._most:
            return False
        following = self._following()
        (number, prepared), self._prepared = self._prepared or (0, None), None
        if prepared is None or number != following:
            now = monotonic()
            if now < self.retry_at:
                return False
            try:
                prepared = _make_segment(self.folder, following)
            except OSError as error:
                self.retry_at = now + RETRY_SECONDS
                log.error("the spool %s cannot grow: %s", self.folder, error.strerror or error)
                return False
        prepared[_LOST_AT : _LOST_AT + 8] = _LOST.pack(self.lost)
        prepared[: len(_MAGIC)] = _MAGIC  # readers go on to it from now on
        before, self._map = self._map, prepared
        self._newest = following
        self._begun = self._begun or following
        self._kept += 1
        self._used = _HEAD_BYTES
        if before is not None:
            before.close()
        return True

    def prepare(self) -> None:
        """Make the next segment ahead of its use, where this one is half full."""
        if self._begun and self._prepared is None and self._used > SEGMENT_BYTES // 2:
            if self._kept >= self._most:
                return
            try:
                number = self._newest + 1
                self._prepared = number, _make_segment(self.folder, number)
            except OSError:
                return  # `append` says it

    def sync(self) -> None:
        """Let what was appended survive a power failure."""
        numbers = _numbers(self.folder)
        for number in numbers[-3:]:  # the one before, this one, the one that is prepared
            try:
                descriptor = os.open(self.folder / _file(number), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    @property
    def written(self) -> Position:
        """Where what this process has appended ends."""
        return Position() if self._map is None else Position(self._newest, self._used)

    def abandon(self) -> None:
        """Go on in another segment: in this one, what is written is not read."""
        if self._map is not None:
            self._map.close()
        self._map, self._used = None, SEGMENT_BYTES

    # -- reading -----------------------------------------------------------------------------

    def read(self, start: Position, most: int) -> Batch:
        """Up to `most` records from a position on. One that is no longer there, or none, stands for
        the oldest record."""
        records: list[bytes] = []
        numbers = _numbers(self.folder)
        position, damaged = start, 0
        if start.segment > self._newest:
            # An older copy of the files: what is in it has been counted. Where this process has
            # written, the clock was set back.
            position = Position(self._begun, _HEAD_BYTES) if self._begun else start
        for number in numbers:
            if number < position.segment:
                continue
            offset = position.offset if number == position.segment else _HEAD_BYTES
            data = _read(self.folder / _file(number), offset)
            if data is None and number > self._newest:
                break  # it is only prepared
            end, whole, more = (0, False, False) if data is None else _frames(data, records, most)
            position = Position(number, offset + end)
            if not whole:
                damaged += 1
                position = Position(number, SEGMENT_BYTES)
                if number == self._newest:
                    self.abandon()
            if more:
                break
        return Batch(records, start, position, self.lost, damaged)

    def discard(self, position: Position) -> None:
        """Remove the segments before the last one that lies wholly before `position`.

        One more is kept than needed: SQLite may forget its last transactions in a power failure.
        """
        numbers = [number for number in _numbers(self.folder) if number < position.segment]
        for number in numbers[:-1]:
            (self.folder / _file(number)).unlink(missing_ok=True)
        self._kept = sum(number <= self._newest for number in _numbers(self.folder))

    def close(self) -> None:
        """Release it; another process may take it."""
        for segment in (self._map, self._prepared and self._prepared[1]):
            if segment is not None:
                segment.close()
        self._map = self._prepared = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def spool_folder(home: Path, location: Location) -> Path:
    """Where the spools for a database are in `home`; those for another one are elsewhere."""
    return home / "spool" / sha256(location.shown.encode()).hexdigest()[:12]


def take_spool(base: Path, max_bytes: int = MAX_BYTES) -> Spool:
    """A spool that no other process has: one that was left, else a new one.

    Raises:
        TidemillError: kind CONFIG: it cannot be written.
    """
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in _folders(base):
            spool = _take(folder, max_bytes)
            if spool is not None:
                return spool
        while True:
            folder = base / secrets.token_hex(8)
            folder.mkdir(mode=0o700)
            spool = _take(folder, max_bytes)
            if spool is not None:
                return spool
    except OSError as error:
        raise config_error(
            "TIDEMILL_HOME", f"the spool {base} cannot be written: {error.strerror or error}"
        ) from error


def left_spools(base: Path) -> Iterator[Spool]:
    """The spools of servers that have ended, one at a time; each is closed afterwards."""
    for folder in _folders(base):
        try:
            spool = _take(folder, MAX_BYTES)
        except OSError as error:
            log.error("the spool %s cannot be read: %s", folder, error.strerror or error)
            continue
        if spool is not None:
            try:
                yield spool
            finally:
                spool.close()


def _folders(base: Path) -> list[Path]:
    try:
        return sorted(path for path in base.iterdir() if _ID.fullmatch(path.name))
    except FileNotFoundError:
        return []


def _take(folder: Path, max_bytes: int) -> Spool | None:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return Spool(folder, descriptor, max_bytes)


def _file(number: int) -> str:
    return f"{number:010d}.seg"


def _numbers(folder: Path) -> list[int]:
    found = (_NAME.fullmatch(name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in found if match is not None)


def _make_segment(folder: Path, number: int) -> mmap.mmap:
    """A new segment in memory; its blocks on the disk are taken, so that no write can fail."""
    path = folder / _file(number)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SEGMENT_BYTES)
        segment = mmap.mmap(descriptor, SEGMENT_BYTES)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return segment


def _read(path: Path, offset: int) -> bytes | None:
    """A part of a segment from an offset on; None: nothing has been written to it."""
    with path.open("rb", buffering=0) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        return os.pread(file.fileno(), _READ_BYTES, offset)


def _remove_blank(folder: Path) -> None:
    """Remove the segments that a process had prepared and did not come to use: after them there
    will be others, which a reader must come to."""
    for number in _numbers(folder):
        path = folder / _file(number)
        with path.open("rb", buffering=0) as file:
            if file.read(len(_MAGIC)) == _MAGIC:
                continue
            file.seek(0)
            data = file.read(SEGMENT_BYTES)
        if not any(data[: len(_MAGIC)]) and not data[_HEAD_BYTES:].strip(b"\0"):
            path.unlink()


def _lost_of(folder: Path, number: int) -> int:
    data = _read(folder / _file(number), _LOST_AT)
    return _LOST.unpack_from(data)[0] if data and len(data) >= _LOST.size else 0


def _frames(data: bytes, records: list[bytes], most: int) -> tuple[int, bool, bool]:
    """Append the records of a part of a segment.

    Returns:
        Where they end; whether all could be read; whether more may follow in this segment.
    """
    place, end = 0, len(data)
    while place + _FRAME.size <= end:
        if len(records) >= most:
            return place, True, True
        length, checksum = _FRAME.unpack_from(data, place)
        if not length:
            return place, True, False
        if place + _FRAME.size + length > end and end == _READ_BYTES:
            return place, True, True
        record = data[place + 8 : place + 8 + length]
        if len(record) < length or crc32(record) != checksum:
            return place, False, False
        records.append(record)
        place += (_FRAME.size + length + 7) & ~7
    return min(place, end), True, end == _READ_BYTES
