"""Returns freed heap memory to the system."""

from __future__ import annotations

import asyncio
import contextlib
import os

ARENAS = 2
"""Heaps that the C library spreads a process's threads over, see `use_few_arenas`."""

_M_ARENA_MAX = -8  # of mallopt(3)

GIVE_BACK_SECONDS = 10.0
"""Seconds that freed memory may stay in the heap for reuse."""


def use_few_arenas() -> None:
    """Limit malloc to a few arenas for all threads; call before any thread starts.

    glibc gives nearly every thread its own arena. Threads that now and then read large texts
    fragment their arenas, whose memory then cannot be returned: the memory of an idle server grew
    from hour to hour. An operator's setting (MALLOC_ARENA_MAX, GLIBC_TUNABLES) is kept; with
    another C library nothing is done.
    """
    import ctypes

    chosen = "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not chosen:
        mallopt(_M_ARENA_MAX, ARENAS)


def give_back() -> None:
    """Return freed memory to the system; for the moment after something large was read.

    The C library of most Linux systems keeps what was freed for later allocations; elsewhere
    nothing is done. Takes some milliseconds, in which other threads' allocations may wait.
    """
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class HeapTrimmer:
    """Returns freed memory to the system some seconds after work has ended, once per period.

    Otherwise the C library would keep the memory of a burst, and a burst of another shape would
    allocate more.

    Args:
        seconds: delay between the end of work and trimming the heap.
    """

    def __init__(self, seconds: float = GIVE_BACK_SECONDS) -> None:
        self._seconds = seconds
        self._due: asyncio.TimerHandle | None = None

    def done(self) -> None:
        """Something that took memory is over; in a running event loop."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(self._seconds, self._give)

    def _give(self) -> None:
        self._due = None
        with contextlib.suppress(RuntimeError):  # the loop ends and takes no more work
            asyncio.get_running_loop().run_in_executor(None, give_back)
