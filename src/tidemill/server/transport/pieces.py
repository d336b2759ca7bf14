"""Large answers in pieces: encoded incrementally, never joined, written at the reader's pace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.server.errors import JSON

Piece = bytes | bytearray

WRITE_BYTES = 2**18
"""Maximum size of one write; between writes other tasks run, with back-pressure from the reader."""

_MARK = re.compile(rb"\0(\d+)\0")


class Document:
    """A JSON document with some values that are already encoded.

    `place` returns a placeholder for such a value, to be used in the argument of `encode`. NUL
    bytes mark placeholders, since they cannot occur in JSON text.
    """

    def __init__(self) -> None:
        self._placed: list[Sequence[Piece]] = []

    def place(self, pieces: Sequence[Piece]) -> msgspec.Raw:
        """A placeholder for the value whose JSON text is the concatenation of `pieces`."""
        self._placed.append(pieces)
        return msgspec.Raw(b"\0%d\0" % (len(self._placed) - 1))

    def encode(self, value: object) -> list[Piece]:
        """The pieces of the whole document."""
        found: list[Piece] = []
        for index, part in enumerate(_MARK.split(msgspec.json.encode(value))):
            if index % 2:
                found += self._placed[int(part)]
            else:
                found.append(part)
        return found


async def write_pieces(
    send: Send, pieces: Sequence[Piece], headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a 200 response with a JSON document in pieces."""
    size = sum(map(len, pieces))
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", JSON.encode()),
            (b"content-length", b"%d" % size),
            *headers,
        ],
    }
    await send(start)
    if size <= WRITE_BYTES:
        await send({"type": "http.response.body", "body": b"".join(pieces), "more_body": False})
        return
    for piece in pieces:
        view = memoryview(piece)
        for begin in range(0, len(piece), WRITE_BYTES):
            part = view[begin : begin + WRITE_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class PiecedResponse(Response):
    """A JSON document in pieces."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(media_type=JSON)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        await write_pieces(send, self._pieces)
