"""Large answers in pieces: encoded incrementally, never joined, written at the reader's pace."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.server.errors import JSON
from tidemill.server.transport.sink import AsgiSink, Piece, write_document

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


class PiecedResponse(Response):
    """A JSON document in pieces."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(media_type=JSON)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        await write_document(AsgiSink(send), self._pieces)


def json_response(document: object, status: int = 200) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(document), status_code=status, media_type=JSON)
