"""Pages of arrays that the core reads: returned to the system, mapped from a file, read ahead."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
from numpy.typing import NDArray

# Python's mmap module makes mappings of its own; here parts of existing ones are meant.
_PROT_READ, _MAP_SHARED, _MAP_FIXED = 1, 1, 16
_DONTNEED, _WILLNEED, _POPULATE_READ = 4, 3, 22
_FAILED = ctypes.c_void_p(-1).value
# Read ahead in pieces: a call holds the process's lock of its mappings.
_PIECE_BYTES = 64 * 2**20


def release(array: NDArray[np.uint8]) -> None:
    """Return the pages of an array in a file mapping to the system; they come back when they are
    read. The array must not be in anonymous memory, whose content would be lost."""
    _advise(*_span(array), _DONTNEED)


def in_file(array: NDArray[np.uint8]) -> bool:
    """True if an array is a view of a mapped file, and not of memory that was computed."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap.mmap)


def populate(array: NDArray[np.uint8]) -> None:
    """Read an array's pages into memory and map them; returns when that is done where the system
    can (Linux 5.14), else when reading has begun."""
    begin, end = _span(array)
    for at in range(begin, end, _PIECE_BYTES):
        last = min(at + _PIECE_BYTES, end)
        if not _advise(at, last, _POPULATE_READ):
            _advise(at, last, _WILLNEED)


def map_file_over(array: NDArray[np.uint8], descriptor: int, offset: int) -> None:
    """Map a file in place of the memory of an array. Raises OSError.

    Args:
        array: of anonymous memory, from a page boundary on, to which nothing is ever written again.
        descriptor: of a file with the same bytes.
        offset: where they begin in it: a multiple of the page size.
    """
    begin, end = _span(array)
    if begin != array.ctypes.data or offset % mmap.PAGESIZE:
        raise ValueError("only whole pages can be mapped")
    call = _libc().mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_int64)
    flags = _MAP_SHARED | _MAP_FIXED
    if call(begin, end - begin, _PROT_READ, flags, descriptor, offset) == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"the packed weights cannot be mapped: {os.strerror(error)}")
    _advise(begin, end, getattr(mmap, "MADV_HUGEPAGE", 0))


def _span(array: NDArray[np.uint8]) -> tuple[int, int]:
    """Addresses of the pages that an array touches."""
    begin = array.ctypes.data
    end = begin + array.nbytes
    page = mmap.PAGESIZE
    return begin // page * page, -(-end // page) * page


def _advise(begin: int, end: int, advice: int) -> bool:
    call = _libc().madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(call(begin, end - begin, advice) == 0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
