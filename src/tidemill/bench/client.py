"""A streaming HTTP/1.1 client with little overhead per chunk, so that it does not measure itself.

Bytes get their arrival time when the event loop hands them over, before anything reads them.
Connections are kept and reused, as clients of a server do. It implements only what a benchmark
needs: one request at a time per connection, and responses as events.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import httptools

from tidemill.base.clock import monotonic

_ERROR_BODY_LIMIT = 1 << 16

Clock = Callable[[], float]
# Opens a connection to a target with the protocol that the factory makes.
Connect = Callable[["Target", Callable[[], asyncio.Protocol]], Awaitable[asyncio.BaseProtocol]]


class HttpFailure(Exception):
    """The server answered with a status other than 200; carries the status and the body's start."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body[:300]}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, from a base URL such as ``http://127.0.0.1:8000/v1``."""

    host: str
    port: int
    path: str
    tls: bool
    headers: tuple[str, ...]

    @classmethod
    def parse(cls, base_url: str, api_key: str | None) -> Target:
        """Split a base URL. Raises ValueError when it has no http(s) scheme or host."""
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is not an http(s) URL")
        tls = parts.scheme == "https"
        headers = (f"Authorization: Bearer {api_key}",) if api_key else ()
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, parts.path.rstrip("/"), tls, headers)

    def with_headers(self, *headers: str) -> Target:
        """The same target with more headers, each ``Name: value``."""
        return replace(self, headers=(*self.headers, *headers))

    def head(self, method: str, route: str, length: int, keep: bool = False) -> bytes:
        """Request line and headers for a JSON body of `length` bytes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.path}{route} HTTP/1.1",
            f"Host: {host}:{self.port}",
            f"Connection: {'keep-alive' if keep else 'close'}",
            "Accept: application/json, text/event-stream",
            "Content-Type: application/json",
            f"Content-Length: {length}",
            *self.headers,
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class _Connection(asyncio.Protocol):
    """One connection; what arrives is parsed at once and waits in `parts` with its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False
        self.lost: Exception | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.parts: list[tuple[float, bytes]] = []
        self._now = 0.0
        self.status = 0  # 0: no response yet
        self.complete = False
        self._keep_alive = False
        self._has_length = False

    def send(self, data: bytes) -> None:
        """Begin an exchange."""
        self._begin()
        assert self._transport is not None
        self._transport.write(data)

    async def wait(self) -> None:
        """Return once there is a part, or the response or the connection has ended."""
        while not (self.parts or self.complete or self.closed):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def reusable(self) -> bool:
        """Whether another request may follow the response."""
        return self.complete and not self.closed and self._keep_alive

    def close(self) -> None:
        """Close it; a response that has not ended is discarded."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._now = self._clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.lost = ConnectionError(f"the server did not answer with HTTP: {error}")
            self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop. A response without a length ends with its connection."""
        self.closed = True
        self.lost = self.lost or exc
        if self.status and not self._has_length and self.lost is None:
            self.complete = True
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self.parts.append((self._now, body))

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.complete = True
        self._keep_alive = self._parser.should_keep_alive()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _connect(target: Target, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context() if target.tls else None
    _, protocol = await loop.create_connection(factory, target.host, target.port, ssl=context)
    return protocol


class Client:
    """Requests to one target over connections that are kept between them.

    Args:
        target: where requests go.
        keep: whether connections are reused.
        clock: seconds; arrival times are read from it.
        connect: opens a connection; None: by TCP, with TLS where the target says so.
    """

    def __init__(
        self, target: Target, *, keep: bool = True, clock: Clock = monotonic,
        connect: Connect | None = None,
    ) -> None:  # fmt: skip
        self.target = target
        self._keep = keep
        self._clock = clock
        self._connect = connect or _connect
        self._idle: list[_Connection] = []

    async def _opened(self) -> _Connection:
        protocol = await self._connect(self.target, lambda: _Connection(self._clock))
        assert isinstance(protocol, _Connection)
        return protocol

    async def _begun(self, method: str, route: str, body: bytes) -> _Connection:
        """A connection on which the response has begun. One that the server closed while it was
        idle is replaced."""
        data = self.target.head(method, route, len(body), self._keep) + body
        while True:
            reused = bool(self._idle)
            connection = self._idle.pop() if reused else await self._opened()
            if reused and connection.closed:
                continue
            try:
                connection.send(data)
                await connection.wait()
            except BaseException:
                connection.close()
                raise
            if connection.status or not reused:
                return connection

    async def exchange(
        self, method: str, route: str, body: bytes = b""
    ) -> AsyncIterator[tuple[float, bytes]]:
        """Send a request and yield the parts of a response's body with their arrival times.

        Raises:
            HttpFailure: for another status than 200.
            OSError: for a broken connection.
        """
        connection = await self._begun(method, route, body)
        try:
            failed = b""
            while True:
                parts, connection.parts = connection.parts, []
                if connection.status not in (0, 200):
                    failed += b"".join(part for _, part in parts)
                    if connection.complete or connection.closed or len(failed) > _ERROR_BODY_LIMIT:
                        raise HttpFailure(connection.status, failed.decode(errors="replace"))
                else:
                    for part in parts:
                        yield part
                if connection.complete:
                    break
                if connection.closed:
                    raise _cut_off(connection)
                await connection.wait()
        finally:
            if self._keep and connection.reusable():
                self._idle.append(connection)
            else:
                connection.close()

    async def events(
        self, route: str, body: bytes, framing: str = "sse"
    ) -> AsyncIterator[tuple[float, list[bytes]]]:
        """POST `body` and yield the events of the response with their arrival times, in one list
        for each part; see `exchange`.

        Args:
            framing: ``sse`` (the data fields of server-sent events) or ``lines`` (of NDJSON).
        """
        end = b"\n\n" if framing == "sse" else b"\n"
        pending = b""
        async for when, part in self.exchange("POST", route, body):
            pending += part
            if b"\r" in pending:
                pending = pending.replace(b"\r\n", b"\n")
            *complete, pending = pending.split(end)
            events = _data(complete) if framing == "sse" else [line for line in complete if line]
            if events:
                yield when, events
        if framing == "lines" and pending.strip():
            yield self._clock(), [pending]

    async def json(self, route: str) -> object:
        """GET a JSON document. Raises HttpFailure, OSError or ValueError."""
        return json.loads(b"".join([part async for _, part in self.exchange("GET", route)]))

    async def post_json(self, route: str, body: object) -> object:
        """POST a JSON document, for one. Raises HttpFailure, OSError or ValueError."""
        data = json.dumps(body).encode()
        return json.loads(b"".join([part async for _, part in self.exchange("POST", route, data)]))

    def close(self) -> None:
        """Close the connections that are kept."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _cut_off(connection: _Connection) -> OSError:
    if isinstance(connection.lost, OSError):
        return connection.lost
    if connection.status:
        return ConnectionError("the server closed the connection within its response")
    return ConnectionError("the server closed the connection or did not answer with HTTP")


def _data(events: list[bytes]) -> list[bytes]:
    """The data fields of server-sent events; lines before it, such as ``event:``, are skipped."""
    found = []
    for event in events:
        if event.startswith(b"data:"):
            found.append(event[5:].strip())
        elif (place := event.find(b"\ndata:")) >= 0:
            found.append(event[place + 6 :].strip())
    return found


async def get_json(target: Target, route: str) -> object:
    """GET a JSON document. Raises HttpFailure, OSError or ValueError."""
    return await Client(target, keep=False).json(route)


async def stream_events(target: Target, route: str, body: bytes) -> AsyncIterator[list[bytes]]:
    """POST `body` and yield the data fields of server-sent events, in one list for each read.
    Ends at ``[DONE]`` or the end of the response.

    Raises HttpFailure for another status than 200, OSError for a broken connection.
    """
    async for _, events in Client(target, keep=False).events(route, body):
        yield events
        if events[-1] == b"[DONE]":
            return
