"""A lock for large requests, granted to clients in round robin."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class Lane:
    """A mutex with one FIFO queue per client; clients are served in round robin."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, client: str) -> None:
        """Acquire the lane; every `enter` needs a `leave`."""
        if not self._taken:
            self._taken = True
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave()  # acquired at the moment of cancellation
            raise

    def leave(self) -> None:
        """Release the lane to the next waiter."""
        self._taken = False
        while self._waiting and not self._taken:
            client, queue = self._waiting.popitem(last=False)
            future = queue.popleft()
            if queue:
                self._waiting[client] = queue
            if not future.done():
                self._taken = True
                future.set_result(None)
