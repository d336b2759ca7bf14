"""Opening files that an operator or a model's folder names, and that may be anything."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# errno's words for what is there and is no file would be a riddle ("Illegal seek").
_NO_FILE = "it is no regular file (but a folder, a pipe or a device)"


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes. Anything else is an error at once: a pipe that nobody
    writes to would be waited for without an end.

    Raises:
        OSError: whose `strerror` says why.
    """
    return open(path, "rb", opener=_open)


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
