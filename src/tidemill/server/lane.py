"""A lane for large things: one at a time, and clients take turns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class Lane:
    """Lets one in at a time. Of those that wait, each client's first comes before any second."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, client: str) -> None:
        """Wait for the lane; whoever got it must `leave`."""
        if not self._taken:
            self._taken = True
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave()  # it was let in at the same moment
            raise

    def leave(self) -> None:
        """Let the next one in."""
        self._taken = False
        while self._waiting and not self._taken:
            client, queue = self._waiting.popitem(last=False)
            future = queue.popleft()
            if queue:
                self._waiting[client] = queue
            if not future.done():
                self._taken = True
                future.set_result(None)
