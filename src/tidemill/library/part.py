"""An unfinished download on disk: its bytes, and which pieces of them are complete."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

_LOCK_POLL_SECONDS = 0.1


class Part:
    """The download of one file, resumable by another process.

        KEY.part     the bytes; what belongs to no complete piece is undefined
        KEY.pieces   a header, then a line with the number of each complete piece
        KEY.lock     held by the process that downloads it

    A process that is killed leaves all three. Whether the bytes are right is decided by their
    digest alone, after the last piece.

    Args:
        folder: of unfinished downloads.
        key: identifies the content.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / f"{key}.part"
        self._pieces = folder / f"{key}.pieces"
        self._lock = folder / f"{key}.lock"
        self._held: int | None = None
        self._data: int | None = None
        self._log: int | None = None
        self._mutex = threading.Lock()
        self.piece_bytes = 0
        self.size = 0
        self.complete: set[int] = set()

    def acquire(self, waiting: Callable[[bool], None]) -> None:
        """Take the lock.

        Args:
            waiting: called again and again while another process has it, first with True; it may
                raise to give up.
        """
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        first = True
        while True:
            held = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The holder before removes the file: a lock on a removed one locks nothing.
                if os.path.samestat(os.fstat(held), os.stat(self._lock)):
                    self._held = held
                    return
            except (BlockingIOError, FileNotFoundError):
                pass
            os.close(held)
            waiting(first)
            first = False
            threading.Event().wait(_LOCK_POLL_SECONDS)

    def open(self, size: int, piece_bytes: int, validator: str | None) -> bool:
        """Open the bytes; whether an earlier download of the same content is continued.

        Args:
            size: of the complete file.
            piece_bytes: size of a piece; an earlier download keeps its own.
            validator: digest or ETag: equal ones mean equal content; None: nothing is known.
        """
        header, complete = self._read_log()
        self.size = size
        same = validator is not None and header.get("validator") == validator
        if same and header.get("size") == size and self._has_bytes(header, complete):
            self.piece_bytes, self.complete = int(header["piece_bytes"]), complete
        else:
            self.remove()
            self.piece_bytes, self.complete = piece_bytes, set()
            line = {"size": size, "piece_bytes": piece_bytes, "validator": validator}
            self._pieces.write_bytes(msgspec.json.encode(line) + b"\n")
        self._data = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._log = os.open(self._pieces, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        return bool(self.complete)

    def _read_log(self) -> tuple[dict[str, Any], set[int]]:
        try:
            lines = self._pieces.read_bytes().splitlines(keepends=True)
            header = msgspec.json.decode(lines[0])
            # A last line without its end was being written when the process was killed.
            complete = {int(line) for line in lines[1:] if line.endswith(b"\n")}
            return (header if isinstance(header, dict) else {}), complete
        except (OSError, IndexError, ValueError, msgspec.MsgspecError):
            return {}, set()

    def _has_bytes(self, header: dict[str, Any], complete: set[int]) -> bool:
        """Whether the file is as long as its complete pieces need."""
        piece_bytes = header.get("piece_bytes")
        if type(piece_bytes) is not int or piece_bytes < 1:
            return False
        count = -(-self.size // piece_bytes)
        if any(not 0 <= piece < count for piece in complete):
            return False
        end = min(self.size, (max(complete, default=-1) + 1) * piece_bytes)
        try:
            return os.stat(self.path).st_size >= end
        except OSError:
            return not complete

    def pending(self) -> list[tuple[int, int, int]]:
        """Number, first byte and end of every piece that is not complete."""
        step = self.piece_bytes
        return [
            (number, start, min(start + step, self.size))
            for number, start in enumerate(range(0, self.size, step))
            if number not in self.complete
        ]

    @property
    def done(self) -> int:
        """Bytes in complete pieces."""
        return self.size - sum(end - start for _, start, end in self.pending())

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes at an offset, from any thread.

        Raises:
            OSError: such as a full disk.
        """
        assert self._data is not None, "the part is open"
        view = memoryview(data)
        while view:
            count = os.pwrite(self._data, view, offset)
            view, offset = view[count:], offset + count

    def finish(self, number: int) -> None:
        """Note that all bytes of a piece are written."""
        assert self._log is not None, "the part is open"
        with self._mutex:
            self.complete.add(number)
            os.write(self._log, b"%d\n" % number)

    def truncate(self, size: int) -> None:
        """Cut the bytes to a size that only now is known."""
        assert self._data is not None, "the part is open"
        os.ftruncate(self._data, size)
        self.size = size

    def remove(self) -> None:
        """Remove the bytes and what is known of them."""
        self._close_files()
        for path in (self.path, self._pieces):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def release(self) -> None:
        """Close everything and release the lock. Complete pieces stay for the next download."""
        self._close_files()
        if self._held is not None:
            if not self.complete:
                self.remove()
            if not self.path.exists():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._pieces)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._lock)
            os.close(self._held)
            self._held = None

    def _close_files(self) -> None:
        for descriptor in (self._data, self._log):
            if descriptor is not None:
                os.close(descriptor)
        self._data = self._log = None
