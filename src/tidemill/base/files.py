"""Safe opening of files named by an operator or a model's folder, which may be of any type."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

# For a path that is not a file, errno's message would be misleading ("Illegal seek").
_NO_FILE = "it is no regular file (but a folder, a pipe or a device)"


# Of a file: device, inode, size, nanoseconds of its last modification and of its last change, mode,
# owner, group, number of names.
Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that was opened while `opened_files` noted it.

    Attributes:
        path: by which it was opened.
        stamp: what the system said of it then.
        mapped: ``weights`` or ``text``: it is read in place for as long as it is in use; else "".
    """

    path: str
    stamp: Stamp
    mapped: str = ""

    def fate(self) -> str | None:
        """What has become of it, in words after "the file has been"; None: it is the same."""
        try:
            now = stamp_of(os.stat(self.path))
        except OSError:
            return "removed"
        if same_content(self.stamp, now):
            return None
        return "changed" if now[:2] == self.stamp[:2] else "replaced"


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp in a file's status."""
    return (
        *(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns),
        *(status.st_mode, status.st_uid, status.st_gid, status.st_nlink),
    )


def same_content(before: Stamp, now: Stamp, *, renamed: bool = False) -> bool:
    """True if both stamps are of the same file, which was not written to in between.

    Writing updates ctime, but so does a change of mode, owner or link count. If one of these
    differs, or the file is known to be renamed, only mtime is compared.
    """
    if before[:4] != now[:4]:
        return False
    return renamed or before[4] == now[4] or before[5:] != now[5:]


_noted: ContextVar[dict[str, OpenedFile] | None] = ContextVar("noted", default=None)


@contextmanager
def opened_files() -> Iterator[dict[str, OpenedFile]]:
    """Note what `open_regular` opens meanwhile in this thread: by path, as it was at first."""
    found: dict[str, OpenedFile] = {}
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def open_regular(path: Path | str, *, mapped: str = "") -> BinaryIO:
    """Open a regular file for reading bytes. Anything else is rejected at once, since opening a
    pipe without a writer would block forever.

    Args:
        path: of the file.
        mapped: what it is going to be mapped for; see `OpenedFile`.

    Raises:
        OSError: whose `strerror` says why.
    """
    file = open(path, "rb", opener=_open)  # noqa: SIM115
    found = _noted.get()
    if found is not None:
        name = os.fspath(path)
        stamp = stamp_of(os.fstat(file.fileno()))
        before = found.get(name)
        if before is None:
            found[name] = OpenedFile(name, stamp, mapped)
        elif mapped:
            found[name] = replace(before, mapped=mapped)
    return file


def is_regular(path: Path) -> bool:
    """Whether there is such a regular file; False when there is nothing of that name.

    Raises:
        OSError: something else has that name, or it cannot be known.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        if os.path.lexists(path):
            raise OSError(errno.ENOENT, "it is a link to a file that is missing") from error
        return False
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, _NO_FILE)
    return True


def shown(path: str) -> str:
    """A path as it can be printed and sent, whatever bytes it is made of."""
    return path.encode("utf-8", "backslashreplace").decode()


def _open(path: str, flags: int) -> int:
    # Non-blocking, since opening a pipe waits for its other end; a regular file takes no notice.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, _NO_FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
