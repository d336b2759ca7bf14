"""Files mapped read-only, and the place of a tensor in one."""

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

# Types of files that numpy has too.
_NUMPY = {
    "F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "U8": "u1", "I16": "<i2", "U16": "<u2",
    "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8", "BOOL": "?",
}  # fmt: skip


# Linux maps pages around one that is touched, up to so many bytes: those before it with it.
_MAPPED_AROUND = 2**16


class MappedFile:
    """A file's content as a read-only memoryview; pages are read when touched.

    The mapping lives as long as any view of it.

    Args:
        path: of the file.
        use: ``weights`` or ``text``; see `base.files.OpenedFile`.

    Attributes:
        path: where it was opened.
        size: in bytes.
        stamp: its identity on disk: device, inode, size, nanoseconds of its last modification and
            of its last change. Equal stamps are the same, unchanged file.
        view: its content.

    Raises:
        TidemillError: kind MODEL_FILE when there is no regular, readable, non-empty file.
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
        """Give its pages, or those that a part of it touches, back to the page cache; what is used
        again is mapped again."""
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
    """A tensor's place in a file; no data is touched before it is asked for.

    Attributes:
        name: as stored.
        dtype: the format's name of its type; it may be one we do not read.
        shape: outermost axis first.
        file: where it lies.
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
        """One entry of the first axis."""
        size = self.nbytes // self.shape[0]
        offset = self.offset + index * size
        return StoredTensor(self.name, self.dtype, self.shape[1:], self.file, offset, size)

    def array(self) -> NDArray[np.generic]:
        """The values, still mapped, of a type that numpy has; MODEL_FILE for others."""
        # Whoever reads only a vocabulary does without it.
        import numpy as np

        dtype = _NUMPY.get(self.dtype)
        if dtype is None:
            raise model_file_error(
                f"tensor {self.name!r} has type {self.dtype}, where {', '.join(_NUMPY)} are read",
                param=self.name,
            )
        return np.frombuffer(self.view, dtype).reshape(self.shape)


def in_file(error: TidemillError, path: Path) -> TidemillError:
    """The same error with the file's name in front."""
    return TidemillError(
        error.kind,
        f"{path.name}: {error.message}",
        param=error.param,
        retryable=error.retryable,
    )
