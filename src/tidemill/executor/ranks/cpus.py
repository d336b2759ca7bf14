"""The processors and threads of each rank: an equal share of what the engine may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def threads_of(total: int, rank: int, ranks: int) -> int:
    """Compute threads of a rank, of a number for all; at least one."""
    return max(1, total // ranks + (rank < total % ranks))


def cpus_of(cpus: list[int], rank: int, ranks: int) -> list[int]:
    """A rank's share of processors; all of them where there are too few to share."""
    if len(cpus) < ranks:
        return cpus
    return cpus[len(cpus) * rank // ranks : len(cpus) * (rank + 1) // ranks]


def pin_rank(rank: int, ranks: int) -> None:
    """Let this thread, and those that it starts, run on the rank's processors alone, so that its
    memory lies near them."""
    os.sched_setaffinity(0, cpus_of(sorted(os.sched_getaffinity(0)), rank, ranks))


@contextmanager
def pinned(rank: int, ranks: int) -> Iterator[None]:
    """Threads that are started meanwhile stay on the rank's processors."""
    before = os.sched_getaffinity(0)
    pin_rank(rank, ranks)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
