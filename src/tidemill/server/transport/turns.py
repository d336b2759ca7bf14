"""A limit on work per event-loop iteration: a burst of requests is spread over many iterations, so
that other tasks run in between."""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

MAX_STARTS_PER_TURN = 8
"""Pieces of work that begin in one iteration. With fewer, a burst would wait for hundreds of
iterations, each of which is long when the loop is busy."""


class _Turns:
    """The queue of one event loop. A single caller does not wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken = 0  # started in this iteration
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        if self._taken < MAX_STARTS_PER_TURN and not self._waiting:
            if not self._taken:
                self._loop.call_soon(self._next)
            self._taken += 1
            return
        future = self._loop.create_future()
        self._waiting.append(future)
        await future

    def _next(self) -> None:
        self._taken = 0
        while self._waiting and self._taken < MAX_STARTS_PER_TURN:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                self._taken += 1
        if self._taken:
            self._loop.call_soon(self._next)


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


async def next_turn() -> None:
    """Wait until fewer than `MAX_STARTS_PER_TURN` pieces of work have begun in this iteration.

    For work of about a millisecond that hundreds of clients can cause at the same moment: the start
    of a request, parsing a body, cancelling an abandoned request.
    """
    loop = asyncio.get_running_loop()
    turns = _by_loop.get(loop)
    if turns is None:
        turns = _by_loop[loop] = _Turns(loop)
    await turns.take()
