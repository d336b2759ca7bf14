"""Responses that end their work when the client disconnects, and streams that survive silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Receive

from tidemill.server.transport.framing import Framing
from tidemill.server.transport.sink import Sink
from tidemill.server.transport.turns import next_turn

KEEP_ALIVE_SECONDS = 15.0
"""A stream that has been silent for so long sends a comment, where its framing has one: proxies
close what is silent for 60 s or so, and a model that is loaded, a long prompt, a queue, or a tool
call that is written may take longer."""

WAITING_SECONDS = 5.0
"""The same for a stream that has no answer yet: its model is being loaded."""


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; cancel it as soon as the client disconnects, and wait until it has ended."""
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnected.cancel()
        if not task.done():
            try:
                await next_turn()  # many clients may disconnect at once
            finally:
                task.cancel()
        # Gathered: the cancellation is expected, and errors are raised below.
        await asyncio.gather(task, disconnected, return_exceptions=True)
    if not task.cancelled():
        task.result()


class Stream:
    """The parts of one stream, in order, with a comment where there was none for long.

    The head goes out with the first of them, so that what fails before has a status of its own;
    or with the first comment.

    Args:
        sink: where it goes.
        framing: its head and comments.
        opening: makes the parts before all others, once; None as long as they are not known.

    Attributes:
        waiting: nothing answers yet: a comment comes sooner.
        started: the head may be out: from here on an error is a part of the stream.
    """

    def __init__(self, sink: Sink, framing: Framing, opening: Callable[[], bytes | None]) -> None:
        self.started = False
        self.waiting = True
        self._sink = sink
        self._framing = framing
        self._opening = opening
        self._opened = False
        self._head_sent = False
        self._turn = asyncio.Lock()
        self._wrote = True
        self._commenting: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        first = min(KEEP_ALIVE_SECONDS, WAITING_SECONDS)
        self._clock = self._loop.call_later(first, self._look)

    def begin(self) -> bytes:
        """The opening parts, if they have not been written and can be; from here on an error is a
        part of the stream."""
        self.started = True
        if self._opened:
            return b""
        opening = self._opening()
        self._opened = opening is not None
        return opening or b""

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send whole parts."""
        self._wrote = True
        async with self._turn:
            if not self._head_sent:
                await self._sink.start(200, self._framing.all_headers())
                self._head_sent = True
            await self._sink.write(data, more=more)

    async def aclose(self) -> None:
        """Send no more comments."""
        self._clock.cancel()
        if self._commenting is not None:
            self._commenting.cancel()
            await asyncio.gather(self._commenting, return_exceptions=True)

    def _look(self) -> None:
        # One look per period, not a clock per part: it comes after one to two periods of silence.
        silent, self._wrote = not self._wrote or self.waiting, False
        if silent and self._framing.keep_alive and not self._turn.locked():
            comment = self.begin() + self._framing.keep_alive
            self._commenting = self._loop.create_task(self.write(comment))
        period = min(KEEP_ALIVE_SECONDS, WAITING_SECONDS) if self.waiting else KEEP_ALIVE_SECONDS
        self._clock = self._loop.call_later(period, self._look)
