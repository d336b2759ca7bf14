"""Turns: what many requests want to do at once, one after the other, with a turn of the event loop
for everything else between two of them."""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary


class _Turns:
    """Of one event loop. Whoever comes alone does not wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        if not self._taken:
            self._taken = True
            self._loop.call_soon(self._next)
            return
        future = self._loop.create_future()
        self._waiting.append(future)
        await future

    def _next(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                self._loop.call_soon(self._next)
                return
        self._taken = False


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


async def next_turn() -> None:
    """Wait until nobody else's piece of work begins in this turn of the running event loop.

    For pieces of a millisecond that hundreds of clients can cause at the same moment: beginning a
    request, reading a body, ending what nobody waits for.
    """
    loop = asyncio.get_running_loop()
    turns = _of_loop.get(loop)
    if turns is None:
        turns = _of_loop[loop] = _Turns(loop)
    await turns.take()
