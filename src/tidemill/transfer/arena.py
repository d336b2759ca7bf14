"""Arena: memory of one engine in which other processes of its machine read blocks.

It is an anonymous file (memfd) that cannot shrink, divided into slots. Its engine writes a block
into a slot and says so over a connection; who reads it says when it is done. Only then a slot is
written again, or once the connection was shut down here: a reader that finds its connection open
after it has read has read what it was told of.
"""

from __future__ import annotations

import mmap
import os
import sys

_PAGE = 4096

AVAILABLE = sys.platform == "linux"


class Arena:
    """The side that writes.

    Args:
        nbytes: of a block.
        count: of slots; memory is taken as they are first written.

    Attributes:
        fd: of the file, for others.
        slots: memory of each.

    Raises:
        OSError: there is no such file on this system.
    """

    def __init__(self, nbytes: int, count: int) -> None:
        import fcntl

        stride = stride_of(nbytes)
        self.fd = os.memfd_create("tidemill-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, stride * count)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        whole = memoryview(mmap.mmap(self.fd, stride * count))
        self.slots = [whole[i * stride :][:nbytes] for i in range(count)]

    def close(self) -> None:
        """The file is given to nobody any more; who has it keeps it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def opened(fd: int, nbytes: int) -> list[memoryview]:
    """The slots of another process's arena, to be read.

    Args:
        fd: of its file; closed here.
        nbytes: of a block.

    Raises:
        OSError: it can shrink, or is no such file.
    """
    import fcntl

    try:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError("its memory could shrink")
        size, stride = os.fstat(fd).st_size, stride_of(nbytes)
        whole = memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
    finally:
        os.close(fd)
    return [whole[i * stride :][:nbytes] for i in range(size // stride)]


def stride_of(nbytes: int) -> int:
    """Bytes from one slot to the next."""
    return -(-nbytes // _PAGE) * _PAGE
