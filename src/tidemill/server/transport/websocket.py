"""The server's side of a WebSocket (RFC 6455): frames, messages of text, pings, and the end.

There are no extensions (compression), and no binary messages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from tidemill.server.errors import Rejection, reject

PING_SECONDS = 20.0
"""A peer that is silent for so long gets a ping, and is given up if its silence goes on as long."""

MAX_WAITING = 16
"""Messages that may wait while one is answered."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTROL_BYTES = 125


class Opcode(IntEnum):
    """Kinds of frames."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class Code(IntEnum):
    """Why a connection ends (RFC 6455, section 7.4.1)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL = 1002
    UNSUPPORTED = 1003
    NO_TEXT = 1007
    POLICY = 1008
    TOO_LARGE = 1009
    INTERNAL = 1011
    TRY_LATER = 1013


class Violation(Exception):
    """What a peer may not send.

    Attributes:
        code: of the close frame.
        reason: in words.
    """

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclass(frozen=True, slots=True)
class Frame:
    """A message (its fragments put together), or a control frame."""

    opcode: Opcode
    data: bytes


class Frames:
    """Takes bytes of a client apart.

    Args:
        bound: bytes of one message at most.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._buffer = bytearray()
        self._kind: Opcode | None = None  # of the message whose fragments arrive
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """What `data` completes.

        Raises:
            Violation: after what was complete before it.
        """
        self._buffer += data
        while (frame := self._next()) is not None:
            final, opcode, payload = frame
            if opcode >= Opcode.CLOSE:
                yield Frame(opcode, payload)
            elif (whole := self._message(opcode, payload, final=final)) is not None:
                yield whole

    @property
    def buffered(self) -> int:
        """Bytes of what is not complete."""
        return len(self._buffer) + self._size

    def _next(self) -> tuple[bool, Opcode, bytes] | None:
        """The next frame: whether it is a message's last, its kind, and its data."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        if first & 0x70:
            raise Violation(Code.PROTOCOL, "reserved bits are set, and no extension was agreed")
        try:
            opcode = Opcode(first & 0x0F)
        except ValueError:
            raise Violation(Code.PROTOCOL, "a frame of an unknown kind") from None
        if not second & 0x80:
            raise Violation(Code.PROTOCOL, "a client must mask its frames")
        final, length, head = bool(first & 0x80), second & 0x7F, 2
        if opcode >= Opcode.CLOSE and (not final or length > _CONTROL_BYTES):
            raise Violation(Code.PROTOCOL, "a control frame is short, and in one piece")
        if length >= 126:
            head += 2 if length == 126 else 8
            if len(buffer) < head:
                return None
            length = int.from_bytes(buffer[2:head], "big")
        if opcode < Opcode.CLOSE and self._size + length > self._bound:
            raise Violation(Code.TOO_LARGE, f"a message has more than {self._bound} bytes")
        if len(buffer) < head + 4 + length:
            return None
        mask = bytes(buffer[head : head + 4])
        payload = _masked(bytes(buffer[head + 4 : head + 4 + length]), mask)
        del buffer[: head + 4 + length]
        return final, opcode, payload

    def _message(self, opcode: Opcode, payload: bytes, *, final: bool) -> Frame | None:
        if (opcode is Opcode.CONTINUATION) != (self._kind is not None):
            raise Violation(Code.PROTOCOL, "a fragment is out of order")
        kind = opcode if self._kind is None else self._kind
        self._parts.append(payload)
        # An empty fragment costs something, too.
        self._size += len(payload) + 1
        if not final:
            self._kind = kind
            return None
        whole = b"".join(self._parts)
        self._kind, self._size = None, 0
        self._parts.clear()
        return Frame(kind, whole)


def frame(opcode: Opcode, data: bytes) -> bytes:
    """A frame of the server: whole, and not masked."""
    size = len(data)
    if size < 126:
        head = bytes((0x80 | opcode, size))
    elif size < 2**16:
        head = bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big")
    return head + data


def _masked(data: bytes, mask: bytes) -> bytes:
    size = len(data)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def accept_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that accept a handshake.

    Raises:
        Rejection: 426 for what is no handshake or of another version, 403 for a page of another
            site: a browser would let it speak to any server.
    """
    found = dict(headers)
    if found.get(b"upgrade", b"").lower() != b"websocket":
        raise reject(426, "this opens a WebSocket: send the headers of a handshake", headers=_OFFER)
    version, key = found.get(b"sec-websocket-version", b""), found.get(b"sec-websocket-key", b"")
    if version.strip() != b"13":
        raise reject(426, "the WebSocket's version must be 13", headers=_OFFER)
    with contextlib.suppress(binascii.Error):
        if len(base64.b64decode(key.strip(), validate=True)) == 16:
            origin = found.get(b"origin", b"").partition(b"://")[2]
            if origin and origin != found.get(b"host", b""):
                raise reject(403, "a WebSocket is not opened for a page of another site")
            digest = hashlib.sha1(key.strip() + _GUID, usedforsecurity=False).digest()
            return [
                (b"upgrade", b"websocket"),
                (b"connection", b"upgrade"),
                (b"sec-websocket-accept", base64.b64encode(digest)),
            ]
    raise reject(400, "Sec-WebSocket-Key must be 16 bytes in base64", code="bad_http")


_OFFER = {"Upgrade": "websocket", "Connection": "upgrade", "Sec-WebSocket-Version": "13"}


class Flow(Protocol):
    """When the peer has read enough for more to be written."""

    @property
    def write_paused(self) -> bool: ...
    async def drain(self) -> None: ...


class WebSocket:
    """A connection that has become a WebSocket.

    Args:
        transport, flow: of the connection.
        bound: bytes of one message, and of those that wait.
        unread: bytes that may wait for the peer while it sends more.
        on_end: called once, when nothing follows.

    Attributes:
        answering: a message is being answered: the connection is not idle.
        lost: set when the peer has left, or the connection has ended.
        charge: called with the bytes that are held of messages, when that changes; it raises a
            Rejection where there is no memory for them.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        flow: Flow,
        bound: int,
        unread: int,
        on_end: Callable[[], None],
    ) -> None:
        self.answering = False
        self.lost = asyncio.Event()
        self.charge: Callable[[int], None] = lambda held: None
        self._transport = transport
        self._flow = flow
        self._bound = bound
        self._unread = unread
        self._on_end = on_end
        self._frames = Frames(bound)
        self._messages: deque[str] = deque()
        self._waiting = 0
        self._arrived = asyncio.Event()
        self._shutting_down = False
        self._silent = False
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.call_later(PING_SECONDS, self._look)

    # -- what the handler calls ----------------------------------------------------------------

    async def receive(self) -> str | None:
        """The next message; None: there is none any more."""
        while not self._messages and not self.lost.is_set() and not self._shutting_down:
            self._arrived.clear()
            await self._arrived.wait()
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._waiting -= len(message)
        with contextlib.suppress(Rejection):  # less than before was held already
            self.charge(self._waiting + self._frames.buffered)
        return message

    async def send(self, text: bytes) -> None:
        """Send a message of text, at the peer's pace; nothing where it has left."""
        if self._flow.write_paused and not self.lost.is_set():
            await self._flow.drain()
        if not self.lost.is_set():
            self._transport.write(frame(Opcode.TEXT, text))

    def close(self, code: Code = Code.NORMAL, reason: str = "") -> None:
        """End it; what was sent before arrives."""
        if self.lost.is_set():
            return
        # A close frame's reason has 123 bytes at most.
        data = code.to_bytes(2, "big") + reason.encode()[:120].decode(errors="ignore").encode()
        self._transport.write(frame(Opcode.CLOSE, data))
        self._end()

    # -- what the connection calls -------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Bytes have arrived."""
        self._silent = False
        try:
            for found in self._frames.feed(data):
                self._take(found)
                if self.lost.is_set():
                    return
            self.charge(self._waiting + self._frames.buffered)
        except Rejection as rejection:
            self.close(Code.TRY_LATER, rejection.problem.message)
        except Violation as violation:
            self.close(violation.code, violation.reason)

    def shut_down(self) -> None:
        """The server stops: what is being answered is answered, and nothing more."""
        self._shutting_down = True
        self._messages.clear()
        self._arrived.set()

    def disconnected(self) -> None:
        """The connection is lost."""
        self._clock.cancel()
        self.lost.set()
        self._arrived.set()

    # -- how -----------------------------------------------------------------------------------

    def _take(self, found: Frame) -> None:
        match found.opcode:
            case Opcode.TEXT:
                self._add(found.data)
            case Opcode.PING:
                if self._transport.get_write_buffer_size() > self._unread:
                    raise Violation(Code.POLICY, "pings are sent, and their answers not read")
                self._transport.write(frame(Opcode.PONG, found.data))
            case Opcode.PONG:
                pass
            case Opcode.CLOSE:
                # The peer's code is sent back, as the protocol says.
                code = found.data[:2] if len(found.data) >= 2 else b""
                self._transport.write(frame(Opcode.CLOSE, code))
                self._end()
            case _:
                raise Violation(Code.UNSUPPORTED, "messages are texts")

    def _add(self, data: bytes) -> None:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise Violation(Code.NO_TEXT, "a message of text is no UTF-8") from None
        if len(self._messages) >= MAX_WAITING or self._waiting + len(text) > self._bound:
            raise Violation(Code.POLICY, "too many messages wait: wait for an answer")
        self._messages.append(text)
        self._waiting += len(text)
        self._arrived.set()

    def _look(self) -> None:
        if self._silent:
            self.close(Code.POLICY, "no pong came")
            return
        self._silent = True
        self._transport.write(frame(Opcode.PING, b""))
        self._clock = self._loop.call_later(PING_SECONDS, self._look)

    def _end(self) -> None:
        self.disconnected()
        self._on_end()
