"""Timeline: simulated time, in which events happen in order and nothing happens between them."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

ALLOCATIONS = 200_000
"""More objects than have died, after which cycles are looked for."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cycles of dead objects seldom: a simulation makes many objects that live, which
    would be gone through again and again (an eighth of its time)."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], ALLOCATIONS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Timeline:
    """Events by time; those of equal time in the order in which they were added.

    Attributes:
        now: simulated seconds.
        events: how many have happened.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def clock(self) -> float:
        """Simulated seconds, for who takes a clock."""
        return self.now

    def at(self, time: float, call: Callable[[], None]) -> None:
        """`call` at a time, now at the earliest."""
        heapq.heappush(self._heap, (time, next(self._order), call))

    def run(self, wanted: Callable[[], bool]) -> None:
        """Let events happen while `wanted`.

        Raises:
            RuntimeError: nothing will ever happen, and it is still wanted (a bug in Tidemill).
        """
        heap = self._heap
        with rare_collections():
            while wanted():
                if not heap:
                    raise RuntimeError("simulated time: nothing will ever happen")
                time, _, call = heapq.heappop(heap)
                self.now = max(self.now, time)
                self.events += 1
                call()

    @property
    def next_time(self) -> float:
        """When the next event happens; infinite without one."""
        return self._heap[0][0] if self._heap else float("inf")
