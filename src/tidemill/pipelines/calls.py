"""The calls of a pipeline's process that wait for the server's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemill.pipelines.messages import Call, Done, Drop, Failed, Part, ToServer

Reply = Part | Done | Failed


class PendingCall:
    """One call; `next` yields its replies in order, the last of which is `Done` or `Failed`."""

    def __init__(self, calls: Calls, number: int) -> None:
        self.number = number
        self._calls = calls
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()

    def put(self, reply: Reply) -> None:
        """A reply has arrived."""
        self._replies.put_nowait(reply)

    async def next(self) -> Reply:
        """The next reply; cancelling this cancels the call."""
        try:
            return await self._replies.get()
        except asyncio.CancelledError:
            self.drop()
            raise

    def drop(self) -> None:
        """Cancel the call, if it has not ended."""
        self._calls.drop(self.number)


class Calls:
    """Numbers the calls and hands replies to them.

    Args:
        send: writes a message to the server.
    """

    def __init__(self, send: Callable[[ToServer], None]) -> None:
        self._send = send
        self._pending: dict[int, PendingCall] = {}
        self._last = 0

    def begin(
        self, run: int, kind: str, model: str, fields: dict[str, Any], *, stream: bool = False
    ) -> PendingCall:
        """Send a call.

        Raises:
            ValueError, TypeError: it is too large, or holds what cannot be sent.
        """
        self._last += 1
        self._send(Call(run, self._last, kind, model, fields, stream))
        pending = self._pending[self._last] = PendingCall(self, self._last)
        return pending

    def take(self, reply: Reply) -> None:
        """A reply of the server."""
        if isinstance(reply, Part):
            pending = self._pending.get(reply.call)
        else:
            pending = self._pending.pop(reply.call, None)
        if pending is not None:  # else it was dropped
            pending.put(reply)

    def drop(self, number: int) -> None:
        """Cancel a call, if it has not ended."""
        if self._pending.pop(number, None) is not None:
            self._send(Drop(number))
