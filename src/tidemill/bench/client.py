"""A streaming HTTP/1.1 client with little overhead per chunk, so that it does not measure itself.

It implements only what a benchmark needs: one POST per connection, a response, chunked or with
a length, and server-sent events. It uses asyncio streams, with TLS of the standard library.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

_LINE_LIMIT = 1 << 20
_ERROR_BODY_LIMIT = 1 << 16


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

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect. Raises OSError."""
        context = ssl.create_default_context() if self.tls else None
        return await asyncio.open_connection(self.host, self.port, ssl=context, limit=_LINE_LIMIT)

    def head(self, method: str, route: str, length: int) -> bytes:
        """Request line and headers for a JSON body of `length` bytes."""
        lines = [
            f"{method} {self.path}{route} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Connection: close",
            "Accept: application/json, text/event-stream",
            "Content-Type: application/json",
            f"Content-Length: {length}",
            *self.headers,
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    status_line = await reader.readline()
    fields = status_line.split(None, 2)
    if len(fields) < 2 or not fields[1].isdigit():
        raise ConnectionError("the server closed the connection or did not answer with HTTP")
    headers: dict[str, str] = {}
    while True:
        line = (await reader.readline()).strip()
        if not line:
            return int(fields[1]), headers
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        return
    remaining = int(headers.get("content-length", "-1"))
    while remaining != 0:
        data = await reader.read(65536 if remaining < 0 else min(65536, remaining))
        if not data:
            return
        remaining -= len(data) if remaining > 0 else 0
        yield data


async def get_json(target: Target, route: str) -> object:
    """GET a JSON document. Raises HttpFailure, OSError or ValueError."""
    reader, writer = await target.open()
    try:
        writer.write(target.head("GET", route, 0))
        status, headers = await _read_head(reader)
        body = b"".join([part async for part in _body(reader, headers)])
        if status != 200:
            raise HttpFailure(status, body.decode(errors="replace"))
        return json.loads(body)
    finally:
        writer.close()


async def stream_events(target: Target, route: str, body: bytes) -> AsyncIterator[list[bytes]]:
    """POST `body` and yield the data fields of server-sent events, in one list for each read.
    Ends at ``[DONE]`` or the end of the response.

    Raises HttpFailure for another status than 200, OSError for a broken connection.
    """
    reader, writer = await target.open()
    try:
        writer.write(target.head("POST", route, len(body)) + body)
        status, headers = await _read_head(reader)
        if status != 200:
            text = b""
            async for part in _body(reader, headers):
                text += part
                if len(text) > _ERROR_BODY_LIMIT:
                    break
            raise HttpFailure(status, text.decode(errors="replace"))
        pending = b""
        async for part in _body(reader, headers):
            pending += part
            *complete, pending = pending.replace(b"\r\n", b"\n").split(b"\n\n")
            events = [event[5:].strip() for event in complete if event.startswith(b"data:")]
            if events:
                yield events
            if events and events[-1] == b"[DONE]":
                return
    finally:
        writer.close()
