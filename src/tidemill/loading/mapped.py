"""Files mapped read-only, and the place of a tensor in one."""

from __future__ import annotations

import math
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from tidemill.base.errors import TidemillError, model_file_error, unsupported
from tidemill.loading.widen import WIDENED
from tidemill.models.tensors import DTYPE_BLOCKS, RawTensor, TensorHeader


class MappedFile:
    """A file's content as a read-only memoryview; pages are read when touched.

    The mapping lives as long as any view of it.

    Raises:
        TidemillError: kind MODEL_FILE when there is no regular, readable, non-empty file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.size = _regular_size(path, file.fileno())
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error
        self.view = memoryview(self._map)


def _regular_size(path: Path, descriptor: int) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise model_file_error(f"{path}: not a regular file")
    if status.st_size == 0:
        raise model_file_error(f"{path}: the file is empty; fetch it again")
    return status.st_size


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place in a file; no data is touched before `read`.

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

    def check_supported(self) -> None:
        """Raise UNSUPPORTED, naming type and tensor, unless the type is one we read."""
        if self.dtype not in DTYPE_BLOCKS and self.dtype not in WIDENED:
            known = ", ".join([*DTYPE_BLOCKS, *WIDENED])
            raise unsupported(
                self.name,
                f"{self.file.path.name}: tensor {self.name!r} has type {self.dtype}; supported are "
                f"{known}; convert the model to one of them",
            )

    def read(self) -> RawTensor:
        """The tensor's bytes, still mapped; types of `WIDENED` as a copy in a wider type."""
        self.check_supported()
        view = self.file.view[self.offset : self.offset + self.nbytes]
        tensor = RawTensor(self.dtype, self.shape, view)
        return WIDENED[self.dtype](tensor) if self.dtype in WIDENED else tensor

    @property
    def loaded(self) -> TensorHeader:
        """Header of what `read` gives."""
        if self.dtype not in WIDENED:
            return TensorHeader(self.dtype, self.shape, self.nbytes)
        return TensorHeader("F16", self.shape, math.prod(self.shape) * 2)


def in_file(error: TidemillError, path: Path) -> TidemillError:
    """The same error with the file's name in front."""
    return TidemillError(
        error.kind,
        f"{path.name}: {error.message}",
        param=error.param,
        retryable=error.retryable,
    )
