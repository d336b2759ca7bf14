"""Streams that are generated whether or not somebody reads them, and followed by who comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

from starlette.types import Receive, Send

from tidemill.base.clock import monotonic
from tidemill.server.transport.event_log import EventLog, LogSink
from tidemill.server.transport.framing import SSE, Framing
from tidemill.server.transport.sink import AsgiSink, Sink
from tidemill.server.transport.stream import Stream, while_connected

Work = Callable[[Sink], Coroutine[Any, Any, None]]


class Detached:
    """One such stream.

    Args:
        bound: of the bytes of its events that are kept.
        prefix: of the events' ids.
        unread_seconds: it is cancelled when nobody has read it for so long; None: never.
        framing: of its events.

    Attributes:
        log: its events.
        error: what ended it before its first event.
        ended_at: `monotonic` seconds of its end; None while it is generated.
    """

    def __init__(
        self,
        bound: int,
        prefix: bytes = b"",
        unread_seconds: float | None = None,
        framing: Framing = SSE,
    ) -> None:
        self.log = EventLog(bound, prefix)
        self.error: Exception | None = None
        self.ended_at: float | None = None
        self._unread_seconds = unread_seconds
        self._framing = framing
        self._readers = 0
        self._unread: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Work) -> None:
        """Begin to generate.

        Args:
            work: writes the stream; what it raises came before anything was written.
        """
        self._task = asyncio.get_running_loop().create_task(self._run(work))

    async def _run(self, work: Work) -> None:
        try:
            await work(LogSink(self.log))
        except Exception as error:
            self.error = error
        finally:
            self.ended_at = monotonic()
            self.log.end()

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when it has ended, however it ends. It has been started."""
        assert self._task is not None
        self._task.add_done_callback(lambda _: callback())

    async def settled(self, seconds: float) -> None:
        """Wait for the first event or the end, at most so long.

        Raises:
            Exception: what ended it before its first event.
        """
        begun = asyncio.Event()
        self.log.watch(begun)
        try:
            async with asyncio.timeout(seconds):
                await begun.wait()
        except TimeoutError:
            return
        if self.log.ended and self._task is not None:
            await asyncio.wait((self._task,))
        if self.error is not None:
            raise self.error

    async def cancel(self) -> None:
        """End it, if it has not ended, and wait until it has."""
        if self._task is not None and self.ended_at is None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def serve(self, receive: Receive, send: Send, start: int) -> None:
        """Write the events from number `start` on to a client, which may leave and come back."""
        self._readers += 1
        if self._unread is not None:
            self._unread.cancel()
        try:
            await while_connected(receive, self._write(send, start))
        finally:
            self._readers -= 1
            if not self._readers and self.ended_at is None and self._unread_seconds is not None:
                loop = asyncio.get_running_loop()
                self._unread = loop.call_later(self._unread_seconds, self._abandon)

    def _abandon(self) -> None:
        if not self._readers and self._task is not None:
            self._task.cancel()

    async def _write(self, send: Send, start: int) -> None:
        stream = Stream(AsgiSink(send), self._framing, lambda: b"")
        async with aclosing(stream):
            await stream.write(stream.begin())
            try:
                async for events in self.log.follow(start):
                    await stream.write(events)
            except LookupError:
                return  # so slow a reader that events were forgotten: its stream breaks off
            await stream.write(b"", more=False)
