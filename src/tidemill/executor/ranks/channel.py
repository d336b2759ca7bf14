"""Channels: how rank 0 and another rank send each other messages, as bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Protocol

import msgspec

from tidemill.transfer.link import Link, LinkError

SILENCE_SECONDS = 30.0
"""A rank that has said nothing for so long is lost; it says something every `BEAT_SECONDS`."""

BEAT_SECONDS = 0.5

MAX_MESSAGE_BYTES = 2**30

_LENGTH = struct.Struct("<I")


class Channel(Protocol):
    """A connection. One thread may receive while others send."""

    def send(self, body: bytes) -> None:
        """Send a message. Raises OSError when the other side has ended, or takes nothing."""

    def receive(self) -> bytes | None:
        """The next message; None when the other side has ended. Raises TimeoutError."""

    def close(self) -> None:
        """End it; whoever waits for it is woken. On any thread, idempotent."""


class LocalChannel:
    """Between processes of a machine.

    Args:
        found: a connected Unix socket.
        patience: seconds that the other side may be silent; None: any.
    """

    def __init__(self, found: socket.socket, patience: float | None = None) -> None:
        self._socket = found
        self._sending = threading.Lock()
        found.settimeout(patience)

    def send(self, body: bytes) -> None:
        """See Channel."""
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self) -> bytes | None:
        """See Channel."""
        head = self._read(_LENGTH.size)
        return None if head is None else self._read(_LENGTH.unpack(head)[0])

    def _read(self, count: int) -> bytes | None:
        data = bytearray(count)
        view, got = memoryview(data), 0
        while got < count:
            try:
                more = self._socket.recv_into(view[got:])
            except TimeoutError:
                raise
            except OSError:
                return None
            if not more:
                return None
            got += more
        return bytes(data)

    def close(self) -> None:
        """See Channel."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class _Body(msgspec.Struct, array_like=True):
    body: bytes


class KeyedChannel:
    """Between machines: each message carries a code that only who knows the key can make.

    Args:
        link: proved.
        patience: seconds that the other side may be silent; None: any.
    """

    def __init__(self, link: Link, patience: float | None = None) -> None:
        self._link = link
        self._sending = threading.Lock()
        link.most_bytes = MAX_MESSAGE_BYTES
        link.set_timeout(patience)

    def send(self, body: bytes) -> None:
        """See Channel."""
        with self._sending:
            self._link.send(_Body(body))

    def receive(self) -> bytes | None:
        """See Channel."""
        try:
            return self._link.receive(_Body).body
        except TimeoutError:
            raise
        except (LinkError, OSError):
            return None

    def wait_forever(self) -> None:
        """From now on the other side may be silent; that its machine is lost is still noticed
        (`Link.watch_peer`)."""
        self._link.set_timeout(None)

    def close(self) -> None:
        """See Channel."""
        self._link.close()
