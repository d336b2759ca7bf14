"""Messages between an engine and its grammar sandbox: length-prefixed msgpack."""

from __future__ import annotations

import socket
import struct

import msgspec

from tidemill.contract.program import Grammar
from tidemill.contract.request import RequestError

_LENGTH = struct.Struct("<I")


class VocabularyShape(msgspec.Struct, frozen=True, tag="shape"):
    """The properties of a vocabulary that decide whether a grammar is accepted; the first message.

    Attributes:
        size: token ids of the model's output layer.
        special: ids and bytes of special tokens.
        ends: the model's end tokens.
    """

    size: int
    special: tuple[tuple[int, bytes], ...]
    ends: tuple[int, ...]


class Attempt(msgspec.Struct, frozen=True, tag="attempt"):
    """A grammar to try."""

    grammar: Grammar


class Tried(msgspec.Struct, frozen=True, tag="tried"):
    """A grammar that compiled and whose matcher could be advanced.

    Attributes:
        source: in llguidance's syntax.
        heap_bytes: memory used by compiling and advancing it; 0 if it cannot be measured.
    """

    source: str
    heap_bytes: int


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """A grammar that cannot be enforced, and why."""

    error: RequestError


class Died(msgspec.Struct, frozen=True, tag="died"):
    """A signal ended the process that tried a grammar."""

    signal: int


ToSandbox = VocabularyShape | Attempt
FromSandbox = Tried | Rejected | Died

_encoder = msgspec.msgpack.Encoder()
to_sandbox: msgspec.msgpack.Decoder[ToSandbox] = msgspec.msgpack.Decoder(ToSandbox)
from_sandbox: msgspec.msgpack.Decoder[FromSandbox] = msgspec.msgpack.Decoder(FromSandbox)


def send(connection: socket.socket, message: ToSandbox | FromSandbox) -> None:
    """Send a message. Raises OSError if the peer is gone or reads too slowly."""
    body = _encoder.encode(message)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket) -> bytes:
    """The next message's body; empty if the peer is gone. Raises OSError (TimeoutError)."""
    head = _exactly(connection, _LENGTH.size)
    return _exactly(connection, _LENGTH.unpack(head)[0]) if head else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 2**20))
        if not piece:
            return b""
        data += piece
    return bytes(data)
