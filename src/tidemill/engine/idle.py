"""What an engine that computes nothing gives back to the system, and when."""

from __future__ import annotations

import math

from tidemill.base.clock import monotonic
from tidemill.base.heap import give_back
from tidemill.executor.base import Executor
from tidemill.memory.lease import KEEP_SECONDS, KVMemory

# A burst that follows within this time finds what the last one took. The second time, all that was
# used before this idle time is old enough to go, too.
IDLE_SECONDS = 60.0
_TIMES = (IDLE_SECONDS, IDLE_SECONDS + KEEP_SECONDS)


class IdleMemory:
    """Gives memory back once no step was computed for a while.

    Idle time counts from the last step: a scrape of the metrics, which the engine answers, takes no
    memory.

    Args:
        memory: the KV cache's books.
    """

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._since: float | None = None
        self._given = 0  # of `_TIMES`, how many have come

    def computing(self) -> None:
        """A step is launched."""
        self._since = None

    def due(self) -> float:
        """When to call `give_back`, of `monotonic`; no step is outstanding. Infinite: not again."""
        if self._since is None:
            self._since, self._given = monotonic(), 0
        return self._since + _TIMES[self._given] if self._given < len(_TIMES) else math.inf

    def give_back(self, executor: Executor) -> None:
        """Give back the cache's blocks that hold nothing worth finding, and what was freed."""
        self._given += 1
        for group, blocks in enumerate(self._memory.vacate(monotonic())):
            executor.give_back(group, blocks)
        give_back()
