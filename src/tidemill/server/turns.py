"""Turns: what many requests want to do at once, a few after the other, with a turn of the event
loop for everything else between."""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

MAX_STARTS_PER_TURN = 8
"""Pieces that begin in one turn. A turn takes long when others have much to do, and then those who
wait for theirs must not wait for hundreds of turns."""


class _Turns:
    """Of one event loop. Whoever comes alone does not wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken = 0  # in this turn
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
    """Wait until few others' pieces of work begin in this turn of the running event loop.

    For pieces of a millisecond that hundreds of clients can cause at the same moment: beginning a
    request, reading a body, ending what nobody waits for.
    """
    loop = asyncio.get_running_loop()
    turns = _by_loop.get(loop)
    if turns is None:
        turns = _by_loop[loop] = _Turns(loop)
    await turns.take()
