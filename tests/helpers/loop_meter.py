"""How long an event loop's other tasks wait at most: in work done meanwhile, not in time passed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class LoopMeter:
    """The longest piece of work between two turns of an event loop.

    Measured in processor time of the whole process, whichever thread spent it: what a thread
    does while it holds the interpreter's lock counts, and what other processes do meanwhile does
    not, so that a busy machine hardly changes it.

    Attributes:
        worst: seconds, since the latest `reset`.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure a loop that runs in another thread."""
        asyncio.run_coroutine_threadsafe(self._beat(), loop)

    def reset(self) -> None:
        """Begin anew."""
        self.worst = 0.0

    def least(self, work: Callable[[], None], enough: float, tries: int = 3) -> float:
        """The worst beside `work`; done again while it is more than `enough`, and the least counts:
        a machine with much else to do slows the processor down as well."""
        least = float("inf")
        for _ in range(tries):
            self.reset()
            work()
            least = min(least, self.worst)
            if least < enough:
                break
        return least

    async def _beat(self) -> None:
        while True:
            before = time.process_time()
            await asyncio.sleep(0.001)
            self.worst = max(self.worst, time.process_time() - before)
