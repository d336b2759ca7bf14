"""Memory that was freed, given back to the system."""

from __future__ import annotations


def give_back() -> None:
    """Return freed memory to the system; for the moment after something large was read.

    The C library of most Linux systems keeps what was freed for later allocations; elsewhere
    nothing is done. Takes some milliseconds, in which other threads' allocations may wait.
    """
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
