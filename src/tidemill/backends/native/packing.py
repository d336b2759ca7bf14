"""Packs a model's matrices in the background, in the order in which a step needs them."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidemill.backends.native import _core
from tidemill.base.errors import ErrorKind, LoadCallback, TidemillError
from tidemill.base.log import get_logger
from tidemill.models.tensors import RawTensor

_log = get_logger(__name__)

# Stored bytes packed at a time and then released: small next to a matrix, and a few milliseconds of
# work.
_PIECE_BYTES = 8 * 2**20

# Packings with a running thread. At exit Python ends a daemon thread at its next request for the
# GIL, and native code cannot be unwound, so all of them are stopped first.
_running: weakref.WeakSet[Packing] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix with reserved memory.

    Attributes:
        name: canonical name.
        tensor: its bytes, as stored.
        source: code of its stored type.
    """

    name: str
    tensor: RawTensor
    source: int


class Packing:
    """Packs all matrices of a core in a background thread; steps wait for the matrices they need.

    Nothing else may read the tensors during packing.

    Args:
        core: with memory reserved for every matrix and the model described.
        matrices: in the order of their ids; empty when all are already packed.
    """

    def __init__(self, core: _core.Executor, matrices: Sequence[Matrix]) -> None:
        self._core = core
        self._matrices = list(matrices)
        self._lock = threading.Lock()
        self._callbacks: list[LoadCallback] = []
        self._ended = False
        self._error: TidemillError | None = None
        self._is_stopping = False
        self._is_reading = False
        self._polls = 0
        self._thread = threading.Thread(target=self._run, name="tidemill-packing", daemon=True)
        if not self._matrices:
            self._ended = True
            return
        _running.add(self)
        self._thread.start()

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """See backends.base.Backend."""
        with self._lock:
            if not self._ended:
                self._callbacks.append(on_loaded)
                return False
        on_loaded(self._error)
        return True

    @property
    def ended(self) -> bool:
        """True once all matrices are packed, or packing has failed."""
        return self._ended

    def progress(self) -> int:
        """A counter that advances with every call while a matrix is read or unpacked. That work
        runs in Python and counts no tiles, so a finer measure does not exist."""
        if self._is_reading:
            self._polls += 1
        return self._polls

    def stop(self) -> None:
        """See backends.base.Backend.stop_loading."""
        self._is_stopping = True
        self._core.fail(ErrorKind.UNAVAILABLE, "the native backend is closed", "")

    def wait(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        error: TidemillError | None = None
        try:
            for index, matrix in enumerate(self._matrices):
                try:
                    self._pack(index, matrix)
                except Exception as failure:
                    error = _with_name(failure, matrix.name)
                    break
                if self._is_stopping:
                    return
            self._end(error)
        finally:
            _running.discard(self)

    def _pack(self, index: int, matrix: Matrix) -> None:
        """Pack one matrix piece by piece. The stored bytes of a packed piece are released."""
        tensor = matrix.tensor
        self._is_reading = True
        try:
            data = as_bytes(tensor)
        finally:
            self._is_reading = False
        count = tensor.shape[0]
        row_bytes = max(1, data.nbytes // count)
        panels = max(1, _PIECE_BYTES // (row_bytes * _core.PANEL_ROWS))
        for first in range(0, count, panels * _core.PANEL_ROWS):
            if self._is_stopping:
                return
            last = min(count, first + panels * _core.PANEL_ROWS)
            self._core.pack(matrix.name, index, matrix.source, data, first, last)
            tensor.release_pages(first * row_bytes, last * row_bytes)

    def _end(self, error: TidemillError | None) -> None:
        self._matrices.clear()
        if self._is_stopping:
            return
        while True:  # before steps fail, so that the callbacks know the reason first
            with self._lock:
                callbacks, self._callbacks = self._callbacks, []
                if not callbacks:
                    self._ended, self._error = True, error
                    break
            for on_loaded in callbacks:
                try:
                    on_loaded(error)
                except Exception:
                    _log.exception("a callback of when_loaded has failed")
        if error is not None:
            self._core.fail(error.kind, error.message, error.param or "")


def as_bytes(tensor: RawTensor) -> NDArray[np.uint8]:
    """The tensor's bytes, without a copy."""
    return np.frombuffer(tensor.data, dtype=np.uint8)


def _with_name(error: Exception, name: str) -> TidemillError:
    """The error of packing a tensor, with the tensor's name."""
    if isinstance(error, TidemillError):
        message = error.message if name in error.message else f"{name}: {error.message}"
        return TidemillError(error.kind, message, param=error.param or name)
    if isinstance(error, MemoryError):
        return TidemillError(
            ErrorKind.RESOURCE,
            f"{name}: out of memory while packing: set a smaller --kv-memory or use a "
            "smaller model",
            param=name,
        )
    _log.error("%s could not be packed", name, exc_info=error)
    return TidemillError(ErrorKind.INTERNAL, f"{name} could not be packed: {error!r}", param=name)


@atexit.register
def _stop_all() -> None:
    for packing in list(_running):
        packing.stop()
        packing.wait()
