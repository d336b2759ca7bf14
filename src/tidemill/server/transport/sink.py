"""Where an answer is written: an HTTP response, or anything else that takes bytes in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from starlette.types import Send

Headers = Iterable[tuple[bytes, bytes]]
Data = bytes | bytearray | memoryview


class Sink(Protocol):
    """The receiving end of one answer; `start` comes first, once."""

    async def start(self, status: int, headers: Headers) -> None:
        """Begin with an HTTP status and headers (names in lower case)."""

    async def write(self, data: Data, *, more: bool = True) -> None:
        """Write bytes; `more` is False in the last call. Waits for the reader."""


class AsgiSink:
    """The response of an ASGI server."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""
        start = {"type": "http.response.start", "status": status, "headers": list(headers)}
        await self._send(start)

    async def write(self, data: Data, *, more: bool = True) -> None:
        """Send a part of the body."""
        part: dict[str, Any] = {"type": "http.response.body", "body": data, "more_body": more}
        await self._send(part)


Piece = bytes | bytearray

WRITE_BYTES = 2**18
"""Maximum size of one write; between writes other tasks run, with back-pressure from the reader."""


async def write_document(
    sink: Sink, pieces: Sequence[Piece], content_type: bytes = b"application/json"
) -> None:
    """Write a 200 response with a document in pieces."""
    size = sum(map(len, pieces))
    await sink.start(200, [(b"content-type", content_type), (b"content-length", b"%d" % size)])
    if size <= WRITE_BYTES:
        await sink.write(b"".join(pieces), more=False)
        return
    for piece in pieces:
        view = memoryview(piece)
        for begin in range(0, len(piece), WRITE_BYTES):
            await sink.write(view[begin : begin + WRITE_BYTES])
    await sink.write(b"", more=False)
