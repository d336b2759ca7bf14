"""One HTTP/1.1 connection to a target, with little work per part of a stream.

What arrives is parsed at once and waits, joined, until it is asked for; a reader that is slow stops
the target from sending. One exchange at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httptools

HIGH_BYTES = 1 << 18
"""Unread bytes beyond which nothing more is read from the target."""

MAX_HEAD_BYTES = 1 << 16

Headers = list[tuple[bytes, bytes]]
Push = Callable[[bytes], bool]


class Lost(Exception):
    """The connection ended before the answer did.

    Attributes:
        unsent: the target cannot have read the request: it was not connected, or a kept connection
            was closed before it answered anything.
    """

    def __init__(self, reason: str, *, unsent: bool = False) -> None:
        super().__init__(reason)
        self.unsent = unsent


class Connection(asyncio.Protocol):
    """See the module docstring.

    Attributes:
        status, headers: of the answer; names in lower case. 0: it has not begun.
        used: it has answered a request before.
        freed: when it became idle; of the clock of whoever keeps it.
    """

    def __init__(self) -> None:
        self.used = False
        self.freed = 0.0
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self._head_bytes = 0
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size = 0
        self._complete = False
        self._keep = False
        self._paused = False
        self._lengthless = True
        self._error: Exception | None = None
        self._push: Push | None = None
        self._received = 0

    # -- whoever sends a request ---------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """No request can be sent."""
        return self._closed

    @property
    def reusable(self) -> bool:
        """The answer is complete, and another request may follow."""
        return self._complete and self._keep and not self._closed

    def send(self, request: bytes) -> None:
        """Begin an exchange. Raises Lost."""
        if self._closed or self._transport is None or self._transport.is_closing():
            raise Lost("the connection is closed", unsent=True)
        self._begin()
        self._transport.write(request)

    async def head(self) -> int:
        """Wait for the answer's head; its status.

        Raises:
            Lost: the connection ended first.
        """
        while not self.status or self.status < 200:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self.status

    async def read(self) -> bytes:
        """What has arrived of the body since the last call; waits for some. Empty: its end.

        Raises:
            Lost: the connection ended first.
        """
        while not self._parts:
            if self._complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._take()

    def _take(self) -> bytes:
        parts = self._parts
        found = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._size = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return found

    async def push(self, push: Push, silence: float) -> bool:
        """Have the body's parts taken as they arrive, without a task that wakes for each of them.

        Args:
            push: takes a part, at once; False: it takes no more for now. What it raises is raised
                here.
            silence: seconds without a part after which the target counts as lost.

        Returns:
            The body has ended; else `push` returned False.

        Raises:
            Lost: the connection ended first.
        """
        if self._parts and not push(self._take()):
            return False
        self._push = push
        try:
            while self._push is not None and not self._complete and self._error is None:
                before = self._received
                try:
                    async with asyncio.timeout(silence):
                        await self._wait()
                except TimeoutError:
                    if self._received == before:
                        raise Lost(f"nothing came for {silence:g} s") from None
            if self._error is not None:
                raise self._error
            return self._complete and not self._parts
        finally:
            self._push = None

    def _push_on(self, push: Push) -> None:
        try:
            more = push(self._take())
        except Exception as error:
            self._error, more = error, False
        if not more:
            self._push = None
            self._wake()

    async def read_all(self, most: int) -> bytes:
        """The whole body.

        Raises:
            Lost: the connection ended first, or the body is longer than `most` bytes.
        """
        found = bytearray()
        while part := await self.read():
            found += part
            if len(found) > most:
                raise Lost(f"the target's answer has more than {most} bytes")
        return bytes(found)

    def abort(self) -> None:
        """Close it; the target sees that nobody reads."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the event loop's calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is connected."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._complete:  # nobody asked for anything
            self.abort()
            return
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._error = Lost(f"the target's answer is no valid HTTP: {error}")
            self.abort()
        if not self.status and self._head_bytes > MAX_HEAD_BYTES:
            self._error = Lost(f"the head of the target's answer has more than {MAX_HEAD_BYTES} B")
            self.abort()
        self._received += 1
        if self._push is not None and self._parts:
            self._push_on(self._push)
            if self._complete or self._error is not None:
                self._wake()
            return
        if self._size > HIGH_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; an answer without a length ends with it."""
        self._closed = True
        if not self._complete and self._error is None:
            if self.status and self._lengthless and exc is None:
                self._complete = True
            else:
                unsent = self.used and not self._head_bytes
                self._error = Lost(
                    "the target closed the connection before its answer was complete",
                    unsent=unsent,
                )
        self._wake()

    # -- the parser's calls --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins, or the one after an interim answer."""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._lengthless = False
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status: int = self._parser.get_status_code()
        if status >= 200:
            self.status = status

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._parts.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self.status:
            self._complete = self.used = True
            self._keep = self._parser.should_keep_alive()
