"""Files mapped read-only, and the location of a tensor in one."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.errors import TidemillError, model_file_error
from tidemill.base.files import open_regular

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Types of files that numpy has as well.
_NUMPY = {
    "F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "U8": "u1", "I16": "<i2", "U16": "<u2",
    "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8", "BOOL": "?",
}  # fmt: skip


# On a page fault Linux also maps surrounding pages, within aligned ranges of this many bytes.
_MAPPED_AROUND = 2**16


class MappedFile:
    """A file's content as a read-only memoryview; pages are read when touched.

    The mapping lives as long as any view of it.

    Args:
        path: of the file.
        use: ``weights`` or ``text``; see `base.files.OpenedFile`.

    Attributes:
        path: the path it was opened by.
        size: in bytes.
        stamp: its identity on disk: device, inode, size, nanoseconds of its last modification and
            of its last change. Equal stamps mean the same, unchanged file.
        view: its content.

    Raises:
        TidemillError: kind MODEL_FILE unless it is a regular, readable, non-empty file.
    """

    def __init__(self, path: Path, *, use: str = "weights") -> None:
        self.path = path
        try:
            with open_regular(path, mapped=use) as file:
                self.stamp = file_stamp(path, file.fileno())
                self.size = self.stamp[2]
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error
        self.view = memoryview(self._map)

    def release_pages(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Unmap all pages, or those that a range touches. They remain in the page cache and are
        mapped again on access."""
        if hasattr(mmap, "MADV_DONTNEED"):
            begin = max(0, offset - _MAPPED_AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
            end = self.size if nbytes is None else min(self.size, offset + nbytes)
            self._map.madvise(mmap.MADV_DONTNEED, begin, max(0, end - begin))


def file_stamp(path: Path, descriptor: int) -> tuple[int, ...]:
    """See `MappedFile.stamp`. Raises MODEL_FILE unless it is a regular file with content."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise model_file_error(f"{path}: not a regular file")
    if status.st_size == 0:
        raise model_file_error(f"{path}: the file is empty; fetch it again")
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location of a tensor in a file; data is read only on access.

    Attributes:
        name: as stored.
        dtype: the format's name of its type; it may be an unsupported one.
        shape: outermost axis first.
        file: the mapped file.
        offset, nbytes: its bytes, checked against the file's size by the parser.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: MappedFile
    offset: int
    nbytes: int

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        """See `places.Place`."""
        return (self,)

    @property
    def view(self) -> memoryview:
        """The bytes, still mapped."""
        return self.file.view[self.offset : self.offset + self.nbytes]

    def member(self, index: int) -> StoredTensor:
        """Entry `index` of the first axis."""
        size = self.nbytes // self.shape[0]
        offset = self.offset + index * size
        return StoredTensor(self.name, self.dtype, self.shape[1:], self.file, offset, size)

    def array(self) -> NDArray[np.generic]:
        """The values, still mapped, for types that numpy has; MODEL_FILE for others."""
        # Not needed, and not imported, by a process that reads only a vocabulary.
        import numpy as np

        dtype = _NUMPY.get(self.dtype)
        if dtype is None:
            raise model_file_error(
                f"tensor {self.name!r} has type {self.dtype}, where {', '.join(_NUMPY)} are read",
                param=self.name,
            )
        return np.frombuffer(self.view, dtype).reshape(self.shape)


def in_file(error: TidemillError, path: Path) -> TidemillError:
    """The same error prefixed with the file's name."""
    return TidemillError(
        error.kind,
        f"{path.name}: {error.message}",
        param=error.param,
        retryable=error.retryable,
    )
