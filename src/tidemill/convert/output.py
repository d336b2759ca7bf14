"""Tensors written to a file piece by piece, and files whose writing can be resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import TidemillError, config_error
from tidemill.loading.jsonfile import read_object
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import OneTensor, Place, held_bytes
from tidemill.models.quantization import QUANTIZERS, convert, to_float32
from tidemill.models.small_floats import bf16_bytes, rounded_bf16
from tidemill.models.tensors import RawTensor

_PIECE = 2**22  # values made at once

Buffer = bytes | memoryview
Bits = NDArray[np.uint16] | NDArray[np.uint32]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to write.

    Attributes:
        name, dtype, shape: as in the file; the shape's outermost axis first.
        nbytes: total size of `pieces`.
        pieces: produces the bytes, in order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    pieces: Callable[[], Iterator[Buffer]] = field(repr=False)


@dataclass(slots=True)
class Loss:
    """Quantization error over all weights: sums of squared errors and of squared values."""

    lost: float = 0.0
    size: float = 0.0
    worst: tuple[float, str] = (0.0, "")

    def add(self, name: str, exact: np.ndarray, kept: np.ndarray) -> None:
        """Count a weight's float32 values and their quantized counterparts."""
        lost = float(np.square(kept - exact, dtype=np.float64).sum())
        size = float(np.square(exact, dtype=np.float64).sum())
        self.lost, self.size = self.lost + lost, self.size + size
        if size:
            self.worst = max(self.worst, ((lost / size) ** 0.5, name))

    @property
    def relative(self) -> float:
        """Relative error, root mean square."""
        return (self.lost / self.size) ** 0.5 if self.size else 0.0


def row_pieces(place: Place) -> Iterator[Place]:
    """The weight in runs of whole rows of its outermost axes, small enough to expand to float32.

    A weight in several tensors is one piece.
    """
    shape = place.shape
    if not isinstance(place, OneTensor) or len(shape) < 2:
        yield place
        return
    stored, width = place.stored, shape[-1]
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    row_bytes = stored.nbytes // max(rows, 1)
    step = max(1, _PIECE // width)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        yield OneTensor(
            dataclasses.replace(
                stored,
                shape=(count, width),
                offset=stored.offset + start * row_bytes,
                nbytes=count * row_bytes,
            )
        )


def copied(name: str, stored: StoredTensor) -> OutTensor:
    """A stored tensor written as it is."""
    return OutTensor(name, stored.dtype, stored.shape, stored.nbytes, lambda: iter([stored.view]))


def as_type(place: Place, name: str, dtype: str, loss: Loss) -> OutTensor:
    """A weight written as F32, in its own type, or quantized to one of `QUANTIZERS`."""
    if place.dtype == dtype and isinstance(place, OneTensor):
        return copied(name, place.stored)

    def pieces() -> Iterator[Buffer]:
        for piece in row_pieces(place):
            values = np.ascontiguousarray(piece.values())
            tensor = RawTensor("F32", values.shape, values.reshape(-1).data.cast("B"))
            if dtype in QUANTIZERS:
                packed = convert(tensor, dtype)
                loss.add(name, values, to_float32(packed))
                tensor = packed
            yield tensor.data

    return OutTensor(name, dtype, place.shape, held_bytes(dtype, place.shape), pieces)


def narrowed(values: NDArray[np.float32], dtype: str) -> Bits:
    """The bits of float32 values rounded to a float type, to nearest, ties to even."""
    if dtype == "F32":
        return np.ascontiguousarray(values).view(np.uint32)
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    return np.frombuffer(bf16_bytes(rounded_bf16(values)), np.uint16).reshape(values.shape)


class ResumableFile:
    """A file written as ``NAME.part`` and renamed at its end; the part file of an interrupted run
    is reused.

    Args:
        path: the final path.
        head: its first bytes; a part file that begins differently is discarded.
        identity: of the source and the settings; a part file of another identity is discarded.
    """

    def __init__(self, path: Path, head: bytes, identity: str) -> None:
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._note = path.with_name(path.name + ".part.json")
        self._head, self._identity = head, identity

    def write(self, tensors: Sequence[tuple[int, OutTensor]], size: int, tell: Progress) -> None:
        """Write every tensor at its offset; the file ends at `size`.

        Args:
            tensors: (offset, tensor), ascending.
            tell: called with the number of bytes written or reused.
        """
        kept = self._kept()
        with open(self._part, "r+b" if kept else "wb") as file:
            if not kept:
                self._note.write_text(json.dumps({"identity": self._identity}))
                file.write(self._head)
            for offset, tensor in tensors:
                if offset + tensor.nbytes <= kept:
                    tell(tensor.nbytes)
                    continue
                file.seek(offset)
                self._write_one(file, tensor, tell)
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._part, self._path)
        self._note.unlink(missing_ok=True)

    @staticmethod
    def _write_one(file: BinaryIO, tensor: OutTensor, tell: Progress) -> None:
        written = 0
        for piece in tensor.pieces():
            file.write(piece)
            written += len(piece)
            tell(len(piece))
        if written != tensor.nbytes:
            raise AssertionError(f"{tensor.name}: {written} bytes of {tensor.nbytes}")
        file.flush()

    def _kept(self) -> int:
        """Trusted bytes of the part file: all except its end, which a crash may have left
        unwritten."""
        with contextlib.suppress(OSError, TidemillError):
            if read_object(self._note).get("identity") == self._identity:
                with open(self._part, "rb") as file:
                    if file.read(len(self._head)) == self._head:
                        return max(0, os.fstat(file.fileno()).st_size - 2**20)
        return 0


def check_target(path: Path, source: Path, overwrite: bool) -> None:
    """CONFIG unless `path` may be written: it is absent (or may be overwritten) and is not the
    source."""
    if path.exists() and (path.samefile(source) or not overwrite):
        raise config_error(
            "out", f"{path} is there already; give another name, or --overwrite (never the source)"
        )
    if not path.parent.is_dir():
        raise config_error("out", f"{path.parent}: no such folder; make it first")
