"""Link: a connection between two engines that prove to each other that they know the same key.

Each side sends a random number, then a proof made of both numbers and the key. After it every
message carries a code made of a key of this connection and of its place in it, so that nobody
between can add, drop, change or repeat one. Nothing is encrypted. A message is msgpack; blocks'
bytes, which follow some, are covered by the checksum in that message alone.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import struct
import threading
from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from typing import TypeVar

import msgspec

KEY_VARIABLE = "TIDEMILL_KV_KEY"
LEAST_KEY = 16
VERSION = 1
HANDSHAKE_SECONDS = 5.0
MAX_MESSAGE_BYTES = 4 * 2**20

_MAGIC = b"TMKVLNK" + bytes([VERSION])
_HELLO = struct.Struct("<8s16s32s")  # magic, role, nonce
_LENGTH = struct.Struct("<I")
_CODE_BYTES = 16

Message = TypeVar("Message", bound=msgspec.Struct)


class LinkError(Exception):
    """The other side is no engine with this key, or the connection cannot be used any more."""


class Role(StrEnum):
    """What a connection is for, as its opener says."""

    WATCH = "watch"  # what blocks the other side has
    FETCH = "fetch"  # blocks
    RANK = "rank"  # commands to a process that computes a part of a model (`executor.ranks`)
    STATES = "states"  # hidden states from one of these to the next
    REQUESTS = "requests"  # those of another server (`engine.client`)


def key_of(text: str) -> bytes:
    """The key that a secret text is.

    Raises:
        ValueError: it is too short.
    """
    if len(text) < LEAST_KEY:
        raise ValueError(f"{KEY_VARIABLE} must have at least {LEAST_KEY} characters")
    return blake2b(text.encode(), person=b"tidemill kv").digest()


def key_from_environment() -> bytes | None:
    """The key that `KEY_VARIABLE` has; None where it is not set.

    Raises:
        ValueError: it is too short.
    """
    text = os.environ.get(KEY_VARIABLE, "")
    return key_of(text) if text else None


class Link:
    """One side of a connection; made by `connect` and `accept`. Not for several threads, but
    `send` and `close`.

    Args:
        found: a connected socket.
        key: of the engines.
        role: what it is for; None: the other side says it.

    Attributes:
        role: what it is for.
        most_bytes: of a message that is received.

    Raises:
        LinkError: the other side does not know the key.
    """

    def __init__(self, found: socket.socket, key: bytes, role: Role | None) -> None:
        self._socket = found
        self.most_bytes = MAX_MESSAGE_BYTES
        opener = role is not None
        found.settimeout(None)
        self.set_timeout(HANDSHAKE_SECONDS)
        if found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own = secrets.token_bytes(32)
        named = (role.value if role is not None else "").encode().ljust(16, b"\0")
        self._write([_HELLO.pack(_MAGIC, named, own)])
        magic, other_role, other = _HELLO.unpack(self._read(_HELLO.size))
        if magic != _MAGIC:
            raise LinkError("it speaks another protocol, or another version of this one")
        nonces = own + named + other if opener else other + other_role + own
        if opener:
            self._write([_code(key, b"opener", nonces)])
            proof = self._read(_CODE_BYTES)
            good = hmac.compare_digest(proof, _code(key, b"listener", nonces))
        else:  # the opener proves first
            proof = self._read(_CODE_BYTES)
            good = hmac.compare_digest(proof, _code(key, b"opener", nonces))
            if good:
                self._write([_code(key, b"listener", nonces)])
        if not good:
            raise LinkError("it has another key")
        try:
            self.role = role or Role(other_role.rstrip(b"\0").decode())
        except ValueError:
            raise LinkError("it asks for something unknown") from None
        names = (b"from opener", b"from listener")
        mine, theirs = names if opener else names[::-1]
        self._send_key = blake2b(mine + nonces, key=key).digest()
        self._receive_key = blake2b(theirs + nonces, key=key).digest()
        self._sent = self._received = 0
        self._sending = threading.Lock()

    def send(
        self, message: msgspec.Struct, blocks: Iterable[bytes | bytearray | memoryview] = ()
    ) -> None:
        """Send a message, and behind it bytes of blocks."""
        body = msgspec.msgpack.encode(message)
        with self._sending:
            code = _code(self._send_key, self._sent.to_bytes(8, "little"), body)
            self._sent += 1
            self._write([_LENGTH.pack(len(body)) + code + body, *blocks])

    def receive(self, kind: type[Message]) -> Message:
        """The next message.

        Raises:
            LinkError: it is none, or not of this kind; TimeoutError: nothing came.
        """
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if size > self.most_bytes:
            raise LinkError("a message is too long")
        code = self._read(_CODE_BYTES)
        body = self._read(size)
        expected = _code(self._receive_key, self._received.to_bytes(8, "little"), body)
        if not hmac.compare_digest(code, expected):
            raise LinkError("a message is not from the other side")
        self._received += 1
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise LinkError(f"a message cannot be read: {error}") from None

    def read_into(self, out: bytearray | memoryview) -> None:
        """The next bytes of a block."""
        rest = memoryview(out)
        while rest:
            try:
                count = self._socket.recv_into(rest, 0, socket.MSG_WAITALL)
            except BlockingIOError:
                raise TimeoutError("nothing has come for too long") from None
            if not count:
                raise LinkError("the connection has ended")
            rest = rest[count:]

    def send_file(self, fd: int) -> None:
        """Give the other side, which must be on this machine, an open file."""
        socket.send_fds(self._socket, [b"f"], [fd])

    def receive_file(self) -> int:
        """What the other side gives with `send_file`.

        Raises:
            LinkError: it gives none.
        """
        said, files, _, _ = socket.recv_fds(self._socket, 1, 1)
        if said != b"f" or len(files) != 1:
            for fd in files:
                os.close(fd)
            raise LinkError("it shares no memory")
        return files[0]

    @property
    def is_local(self) -> bool:
        """The other side is a process of this machine."""
        return self._socket.family == getattr(socket, "AF_UNIX", None)

    @property
    def is_open(self) -> bool:
        """Neither side has ended the connection. Of a local one it is known at once."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLRDHUP)
        except (OSError, ValueError):
            return False
        return not poll.poll(0)

    def set_timeout(self, seconds: float | None) -> None:
        """How long the other side may be silent, or read nothing."""
        # The system's own timeouts: a whole block is then one call. None is none there, too.
        whole = int(seconds or 0)
        span = struct.pack("@ll", whole, int(((seconds or 0) - whole) * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, span)

    def watch_peer(self, seconds: int) -> None:
        """End the connection when the other side's machine has answered nothing for so long, also
        while there is nothing to say."""
        options = {"TCP_USER_TIMEOUT": 1000 * seconds, "TCP_KEEPIDLE": max(1, seconds // 2)}
        options |= {"TCP_KEEPINTVL": max(1, seconds // 4), "TCP_KEEPCNT": 2}
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if (option := getattr(socket, name, None)) is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def detach(self) -> socket.socket:
        """The socket, for another protocol."""
        self._socket.setblocking(False)
        return self._socket

    def close(self) -> None:
        """End the connection; whoever waits for it is woken. On any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int) -> bytes:
        out = bytearray(size)
        self.read_into(out)
        return bytes(out)

    def _write(self, parts: list[bytes | bytearray | memoryview]) -> None:
        try:
            for part in parts:
                self._socket.sendall(part)
        except BlockingIOError:
            raise TimeoutError("nothing was read for too long") from None


def connect(address: str, key: bytes, role: Role) -> Link:
    """Open a connection to an engine.

    Args:
        address: HOST:PORT.
        key: of both engines.
        role: what it is for.

    Raises:
        LinkError, OSError: it cannot be opened.
    """
    host, port = host_and_port(address)
    return _made(socket.create_connection((host, port), HANDSHAKE_SECONDS), key, role)


def connect_locally(name: str, key: bytes, role: Role) -> Link:
    """As `connect`, to an engine of this machine.

    Args:
        name: of its socket, in the abstract namespace.
        key, role: as for `connect`.

    Raises:
        LinkError, OSError: there is none of this name.
    """
    found = socket.socket(socket.AF_UNIX)
    try:
        found.settimeout(HANDSHAKE_SECONDS)
        found.connect("\0" + name)
    except BaseException:
        found.close()
        raise
    return _made(found, key, role)


def accept(found: socket.socket, key: bytes) -> Link:
    """The other end of `connect`, of an accepted socket.

    Raises:
        LinkError, OSError: the other side does not know the key.
    """
    return _made(found, key, None)


def _made(found: socket.socket, key: bytes, role: Role | None) -> Link:
    try:
        return Link(found, key, role)
    except BaseException:
        found.close()
        raise


def host_and_port(address: str) -> tuple[str, int]:
    """Of HOST:PORT, or [HOST]:PORT.

    Raises:
        ValueError: it is neither.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"must be HOST:PORT, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _code(key: bytes, *parts: bytes) -> bytes:
    hasher = blake2b(key=key, digest_size=_CODE_BYTES)
    for part in parts:
        hasher.update(part)
    return hasher.digest()
