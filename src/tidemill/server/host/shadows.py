"""Copies of requests for a version whose answers are thrown away.

A copy never delays a request. It starts once its request has been answered, in an engine that has
no queue, and never by evicting a model. Unless its rule says ``while_busy``, it also waits until no
request is being answered, and ends when one comes. What cannot run is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError
from tidemill.base.ids import new_id
from tidemill.base.log import get_logger
from tidemill.generation.caller import Caller
from tidemill.server.errors import Rejection
from tidemill.server.host.begin import begin_generation
from tidemill.server.host.routed import Routed
from tidemill.server.host.watching import Watch

if TYPE_CHECKING:
    from tidemill.generation.request import GenerateRequest
    from tidemill.server.host.host import ModelHost
    from tidemill.server.host.slot import Slot

log = get_logger(__name__)

MAX_RUNNING = 4
"""Copies that run at the same time, over all names."""

MAX_WAITING = 16
"""Copies that wait for a quiet moment; the oldest is dropped for a new one."""

MAX_SECONDS = 300.0
"""A copy that takes longer is dropped."""

LOWEST_PRIORITY = 2**31 - 1
LEAST_WEIGHT = 1e-6
_NO_BOUND = 2**62


@dataclass(frozen=True, slots=True)
class Copy:
    """A request to be copied.

    Attributes:
        slot: the shadow.
        asked: the request.
        watch: measures the copy.
        while_busy: it runs beside requests.
    """

    slot: Slot
    asked: GenerateRequest
    watch: Watch
    while_busy: bool


class Shadows:
    """The copies of one server.

    Args:
        host: the models.
        busy: whether a request is being answered, or waits for its model.
        count: called with the shadow's name and what became of a copy: ``answered``, ``failed``, or
            why it was dropped: ``full``, ``queue``, ``memory``, ``interrupted``, ``late``.
    """

    def __init__(
        self, host: ModelHost, busy: Callable[[], bool], count: Callable[[str, str], None]
    ) -> None:
        self._host = host
        self._busy = busy
        self._count = count
        self._waiting: deque[Copy] = deque()
        self._running: dict[asyncio.Task[None], Copy] = {}
        self._closed = False

    def offer(self, copy: Copy) -> None:
        """Run a copy now or in a quiet moment, or drop it."""
        if self._closed:
            return
        if not copy.while_busy:
            self._waiting.append(copy)
            if len(self._waiting) > MAX_WAITING:
                self._count(self._waiting.popleft().slot.name, "full")
            self.quiet()
        elif len(self._running) >= MAX_RUNNING:
            self._count(copy.slot.name, "full")
        else:
            self._start(copy)

    def quiet(self) -> None:
        """A request has ended: copies that wait may run if none is left."""
        if self._waiting and not self._running and not self._busy():
            self._start(self._waiting.popleft())

    def give_way(self, *, all_of_them: bool = False) -> None:
        """A request comes: copies end that may not run beside one.

        Args:
            all_of_them: a model has to be loaded for it, which copies could delay.
        """
        for task, copy in self._running.items():
            if all_of_them or not copy.while_busy:
                task.cancel()

    def close(self) -> None:
        """End and take no more."""
        self._closed = True
        self._waiting.clear()
        self.give_way(all_of_them=True)

    def _start(self, copy: Copy) -> None:
        task = asyncio.create_task(self._run(copy), name="tidemill-shadow")
        self._running[task] = copy
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        copy = self._running.pop(task)
        outcome = "answered"
        if task.cancelled():
            outcome = "interrupted"
        elif (error := task.exception()) is not None:
            if isinstance(error, _Dropped):
                outcome = error.why
            elif isinstance(error, TimeoutError):
                outcome = "late"
            else:
                outcome = "failed"
                if not isinstance(error, TidemillError | Rejection):
                    log.error("a copy for %s failed", copy.slot.name, exc_info=error)
        self._count(copy.slot.name, outcome)
        self.quiet()

    async def _run(self, copy: Copy) -> None:
        slot, host = copy.slot, self._host
        if not slot.open and not await host.fits_without_eviction(slot):
            raise _Dropped("memory")
        if slot.waiters or (
            slot.loaded is not None and slot.loaded.served.client.last_stats.queued
        ):
            raise _Dropped("queue")
        caller = Caller(
            client="shadow",
            weight=LEAST_WEIGHT,
            cache_salt=copy.asked.caller.cache_salt,
            priority=LOWEST_PRIORITY,
        )
        async with (
            asyncio.timeout(MAX_SECONDS),
            host.lease(Routed(slot, watch=copy.watch, copy=True)) as model,
        ):
            asked = replace(copy.asked, caller=caller, arrival=monotonic())
            generation = await begin_generation(
                model, new_id("copy"), asked, max_answer_bytes=_NO_BOUND, streamed=True
            )
            async with aclosing(generation.steps()) as steps:
                async for _ in steps:
                    pass


class _Dropped(Exception):
    """A copy does not run.

    Attributes:
        why: see `Shadows`.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
