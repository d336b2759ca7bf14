"""Timeline: simulated time, in which events happen in order and nothing happens between them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


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
