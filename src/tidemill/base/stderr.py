"""A stderr whose writes neither block nor fail.

A server's log usually goes through a pipe, whose reader may stall, exit, or write to a full disk.
None of that may stop the server. Output that cannot be written at once waits in a bounded queue.
Lines beyond that are dropped and counted, and the count is logged as soon as writing succeeds. If
stderr itself fails, stdout is used.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable

MAX_PENDING_BYTES = 2**20
# What is pending at a process's end has so long to be written.
EXIT_SECONDS = 1.0

_STREAMS = (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w"))


def open_standard_streams(*, stderr_to_stdout: bool) -> None:
    """Open those of the three standard streams that this process was started without, so that no
    other file takes their numbers, and what is printed goes nowhere instead of raising.

    Args:
        stderr_to_stdout: words for a missing stderr go to stdout.
    """
    for name, number, mode in _STREAMS:
        try:
            os.fstat(number)
        except OSError:
            if name == "stderr" and stderr_to_stdout:
                os.dup2(1, number)
            else:  # the lowest free number is this one
                os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def guard_stderr(missing: Callable[[str], str] | None = None) -> None:
    """Make `sys.stderr` of this process one that neither waits nor fails.

    Nothing happens where it has been replaced already (by a test, a notebook).

    Args:
        missing: makes a line of the log from a sentence about lines that are missing.
    """
    if sys.stderr is not sys.__stderr__ or sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    writer = LineWriter(2, 1, missing or (lambda text: text))
    sys.stderr = GuardedStream(writer, 2)
    atexit.register(sys.stderr.finish)


class GuardedStream(io.TextIOBase):
    """A text stream over a `LineWriter`, which gets whole lines.

    Args:
        writer: where they go.
        descriptor: what `fileno` says.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, writer: LineWriter, descriptor: int) -> None:
        self.writer = writer
        self._descriptor = descriptor
        self._partial = threading.local()  # a line is one thread's

    def writable(self) -> bool:
        """True."""
        return True

    def isatty(self) -> bool:
        """A person reads it."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The number of the descriptor beneath."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Write what is whole of it; the rest with the next line's end or `flush`."""
        if not isinstance(text, str):
            raise TypeError(f"text is written, not {type(text).__name__}")
        whole, end, self._partial.text = (self._taken() + text).rpartition("\n")
        if end:
            self._write(f"{whole}\n")
        return len(text)

    def flush(self) -> None:
        """Write what this thread has of a line."""
        self._write(self._taken())

    def _taken(self) -> str:
        text: str = getattr(self._partial, "text", "")
        self._partial.text = ""
        return text

    def _write(self, text: str) -> None:
        if text:
            self.writer.write(text.encode(self.encoding, self.errors))

    def close(self) -> None:
        """Flush; like the real stderr, it stays open."""
        self.flush()

    def finish(self) -> None:
        """The process ends: what is pending has `EXIT_SECONDS` to be written."""
        self.flush()
        self.writer.finish(EXIT_SECONDS)


class LineWriter:
    """Writes to a descriptor from any thread, at once where that does not wait, else later.

    Args:
        descriptor: where to.
        spare: where to when that fails; nothing if it is the same file or not open.
        missing: makes a line of a sentence about lines that are missing.
        limit: bytes that may be pending.
    """

    def __init__(
        self,
        descriptor: int,
        spare: int | None,
        missing: Callable[[str], str] = lambda text: text,
        limit: int = MAX_PENDING_BYTES,
    ) -> None:
        self._targets = _targets(descriptor, spare)
        self._immediate = all(target.immediate for target in self._targets)
        self._latest: _Target  # that was written to, or would have been
        self._missing = missing
        self._limit = limit
        self._pending: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0
        self._why = ""
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition(threading.RLock())

    def write(self, data: bytes) -> None:
        """Write some lines; neither waits nor raises."""
        with self._changed:
            notice = self._notice()
            if self._thread is not None and self._bytes + len(data) > self._limit:
                self._lose(data, "nobody reads it fast enough")
                return
            rest: bytes | None = notice + data
            if self._thread is None and self._immediate:
                rest = self._put(notice + data)
            if rest is None:
                self._lose(data, self._why)
                return
            self._lost = 0
            if rest:
                self._pending.append(rest)
                self._bytes += len(rest)
                if self._thread is None:
                    self._start()

    def finish(self, seconds: float) -> None:
        """Say what is missing; return when nothing is pending, or after so many seconds."""
        with self._changed:
            if self._lost:
                self.write(b"")
            self._changed.wait_for(lambda: self._thread is None, seconds)

    def _put(self, data: bytes) -> bytes | None:
        """Write what can be written now; returns what must wait, None when it cannot be written."""
        failure: OSError | None = None
        for target in self._targets:
            self._latest = target
            try:
                while data:
                    data = data[target.write(data) :]
                return b""
            except BlockingIOError:
                return data
            except OSError as error:
                failure = failure or error
        why = "there is no place for it" if failure is None else failure.strerror
        self._why = f"it cannot be written: {why}"
        return None

    def _lose(self, data: bytes, why: str) -> None:
        self._lost += data.count(b"\n")
        self._why = why

    def _notice(self) -> bytes:
        """A line about lines that are missing."""
        if not self._lost:
            return b""
        line = self._missing(f"{self._lost} lines of this log are missing: {self._why}")
        return f"{line}\n".encode()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._drain, name="tidemill-log", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        """Write what is pending, in order, however long that takes."""
        while True:
            with self._changed:
                if not self._pending:
                    self._thread = None
                    self._changed.notify_all()
                    return
                data = self._pending.popleft()
            whole, rest = data, self._put(data)
            while rest:
                self._latest.wait()
                rest = self._put(rest)
            with self._changed:
                self._bytes -= len(whole)
                if rest is None:
                    self._lose(whole, self._why)


class _Target:
    """A descriptor, and how it is written to without waiting.

    Attributes:
        write: writes some of the bytes it is given; BlockingIOError when that would wait.
        immediate: `write` does not wait; else only a thread may call it.
    """

    def __init__(self, descriptor: int) -> None:
        self.immediate = True
        self._descriptor = descriptor
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            import socket

            connection = socket.socket(fileno=os.dup(descriptor))
            how = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
            self.write: Callable[[bytes], int] = lambda data: connection.send(data, how)
            return
        if not stat.S_ISREG(mode):
            # The flag belongs to the open file, which others share; so it is opened anew.
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                self._descriptor = descriptor = os.open(f"/proc/self/fd/{descriptor}", flags)
            except OSError:
                self.immediate = False
        self.write = lambda data: os.write(descriptor, data)

    def wait(self) -> None:
        """Return when something can be written, or when that has become impossible."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        poll.poll()


def _targets(*descriptors: int | None) -> tuple[_Target, ...]:
    """Those of them that are open, each file once."""
    found: dict[tuple[int, int], _Target] = {}
    for number in descriptors:
        with contextlib.suppress(OSError):
            if number is not None:
                status = os.fstat(number)
                found.setdefault((status.st_dev, status.st_ino), _Target(number))
    return tuple(found.values())
