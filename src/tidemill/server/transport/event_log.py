"""The events of one stream, kept so that readers can leave, come back and follow it from anywhere.

An event has a number, its place in the stream from 0. The generation writes to the log whether or
not somebody reads; it never waits for a reader. The number of bytes is bounded: beyond it the
oldest events are forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tidemill.server.transport.sink import Data, Headers

BATCH = 64
"""Events that a reader who is behind gets at once."""

_END = b"\n\n"


class EventLog:
    """Server-sent events in order.

    Args:
        bound: of their bytes.
        prefix: of their ids, before the number.

    Attributes:
        first: number of the oldest event that is kept.
        size: bytes that are kept.
        ended: there are no more events to come.
    """

    def __init__(self, bound: int, prefix: bytes = b"") -> None:
        self._prefix = prefix
        self.first = 0
        self.size = 0
        self.ended = False
        self._bound = bound
        self._events: list[bytes] = []
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def next(self) -> int:
        """Number of the next event."""
        return self.first + len(self._events)

    def add(self, events: bytes) -> None:
        """Add whole events, each of which ends with an empty line; comments are left out."""
        for event in events.split(_END)[:-1]:
            if event.startswith(b":"):
                continue
            self._events.append(b"id: %b%d\n%b%b" % (self._prefix, self.next, event, _END))
            self.size += len(self._events[-1])
        self._forget()
        self._wake()

    def end(self) -> None:
        """No event follows."""
        self.ended = True
        self._wake()

    def _forget(self) -> None:
        surplus = 0
        while self.size > self._bound and surplus < len(self._events):
            self.size -= len(self._events[surplus])
            surplus += 1
        del self._events[:surplus]
        self.first += surplus

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def watch(self, event: asyncio.Event) -> None:
        """Set `event` with the next event, or at the end."""
        if self.ended or self._events:
            event.set()
            return
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: event.set())
        self._waiting.add(future)

    async def follow(self, start: int) -> AsyncIterator[bytes]:
        """Events from number `start` on, until the last one; several at once where there are.

        Raises:
            LookupError: an event that should come next is no longer kept.
        """
        while True:
            if start < self.first:
                raise LookupError(f"event {start} is no longer kept; the oldest is {self.first}")
            at = start - self.first
            some = self._events[at : at + BATCH]
            if some:
                start += len(some)
                yield b"".join(some)
            elif self.ended:
                return
            else:
                future = asyncio.get_running_loop().create_future()
                self._waiting.add(future)
                try:
                    await future
                finally:
                    self._waiting.discard(future)


class LogSink:
    """A `Sink` that writes a stream to a log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def start(self, status: int, headers: Headers) -> None:
        """Nothing: every reader gets a head of its own."""

    async def write(self, data: Data, *, more: bool = True) -> None:
        """Add events."""
        self._log.add(bytes(data))
        if not more:
            self._log.end()
