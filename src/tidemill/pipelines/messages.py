"""Messages between the server and a pipeline's process: length-prefixed msgpack over a socket.

The server speaks first with each `Start`. Ids of runs and calls are unique in one process: runs are
numbered by the server, calls by the process. Text flows under credit: a run has at most
`WINDOW_BYTES` of text that the server has not taken.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgspec

MAX_MESSAGE_BYTES = 2**26
"""Of one message; a larger one is a bug, or a call with too much in it."""

WINDOW_BYTES = 2**18
"""Text of one run that may wait for its client."""

PIECE_BYTES = 2**16
"""Text of one message, at most about."""

_LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Answer a request.

    Attributes:
        run: its id.
        request_id: names it in logs.
        pipeline: the name under which it was called.
        messages: the conversation, in the chat API's terms.
        sampling: the sampling fields that the client sent.
        options: of the deployment.
        stream: the client reads the answer as it comes.
        names: every served name.
        default: the served model that answers requests which name none.
        seconds: until its deadline.
    """

    run: int
    request_id: str
    pipeline: str
    messages: list[dict[str, Any]]
    sampling: dict[str, Any]
    options: dict[str, Any]
    stream: bool
    names: tuple[str, ...]
    default: str
    seconds: float


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Cancel a run; the process answers with `Ended` when it has."""

    run: int


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """So many bytes of a run's text were taken."""

    run: int
    size: int


class Part(msgspec.Struct, frozen=True, tag="part"):
    """The next text of a streamed call."""

    call: int
    text: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The result of a call: its kind's members."""

    call: int
    result: dict[str, Any]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A call failed: kind (`base.errors.ErrorKind`), message and field."""

    call: int
    kind: str
    message: str
    param: str | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The file is loaded; or why it is not.

    Attributes:
        problem: for the operator's log; None if it is loaded.
    """

    problem: str | None = None


class Text(msgspec.Struct, frozen=True, tag="text"):
    """The next text of a run's answer."""

    run: int
    text: str


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Ask a served model.

    Attributes:
        run, call: ids.
        kind: ``generate``, ``embed`` or ``rerank``.
        model: its name.
        fields: of the kind.
        stream: a generation's text is sent as it comes.
    """

    run: int
    call: int
    kind: str
    model: str
    fields: dict[str, Any]
    stream: bool = False


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Cancel a call."""

    call: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A run has ended well, or was stopped."""

    run: int


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """A run ended with an exception.

    Attributes:
        where: type of the exception and the lines of code that it came from, for the operator's
            log; its message, which may hold a client's text, is left out.
        call: the failed call whose error it is; None for any other.
        rejection: for the client, where the file raised `BadRequest`.
    """

    run: int
    where: str
    call: int | None = None
    rejection: str | None = None


ToProcess = Start | Stop | Credit | Part | Done | Failed
ToServer = Ready | Text | Call | Drop | Ended | Raised

_encoder = msgspec.msgpack.Encoder()
to_process: msgspec.msgpack.Decoder[ToProcess] = msgspec.msgpack.Decoder(ToProcess)
to_server: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)


def frame(message: ToProcess | ToServer) -> bytes:
    """A message as it is sent.

    Raises:
        ValueError: it is too large.
        TypeError: it holds what cannot be sent.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(body)} bytes; at most {MAX_MESSAGE_BYTES} are sent")
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next message's body; None when the other side is gone.

    Raises:
        ValueError: it is too large.
    """
    try:
        size = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {size} bytes")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        return None
