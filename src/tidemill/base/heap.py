"""Memory that was freed, given back to the system."""

from __future__ import annotations

import asyncio
import contextlib
import os

ARENAS = 2
"""Heaps that the C library spreads a process's threads over, see `use_few_arenas`."""

_M_ARENA_MAX = -8  # of mallopt(3)

GIVE_BACK_SECONDS = 10.0
"""How long what was freed may be kept for more of the same."""


def use_few_arenas() -> None:
    """Let all threads allocate from a few heaps; called before there are any.

    The C library of most Linux systems gives nearly every thread a heap of its own. Threads that
    read large texts now and then leave each of theirs in pieces, which cannot be given back: the
    memory of a server that rests grew from hour to hour. What an operator chose (MALLOC_ARENA_MAX,
    GLIBC_TUNABLES) stays; where there is another library nothing is done.
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
    """Gives freed memory back some seconds after something was done, and not again before.

    What a burst took would else stay with the process: the C library keeps it, and a burst of
    another shape takes more.

    Args:
        seconds: between what was done and the giving back.
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
