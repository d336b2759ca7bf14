"""Listener: where other engines connect, and are let in if they know the key."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from tidemill.base.log import get_logger
from tidemill.transfer.link import Link, LinkError, accept, host_and_port

_log = get_logger(__name__)

MAX_UNPROVEN = 16
"""Connections that have not proved yet that they know the key; further ones are closed."""


class Listener:
    """Accepts connections on a thread, each handshake on one of its own.

    Args:
        address: HOST:PORT; port 0 is any free one.
        key: of the engines.
        on_link: takes a link that is let in, on any thread.

    Attributes:
        address: where it listens.

    Raises:
        OSError, ValueError: it cannot listen there.
    """

    def __init__(self, address: str, key: bytes, on_link: Callable[[Link], None]) -> None:
        host, port = host_and_port(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=64)
        found = self._socket.getsockname()
        self.address = f"[{found[0]}]:{found[1]}" if ":" in found[0] else f"{found[0]}:{found[1]}"
        self._key = key
        self._on_link = on_link
        self._unproven = threading.Semaphore(MAX_UNPROVEN)
        self._thread = threading.Thread(target=self._run, name="tidemill-kv-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            try:
                found, address = self._socket.accept()
            except OSError:
                return
            if not self._unproven.acquire(blocking=False):
                found.close()
                continue
            threading.Thread(
                target=self._handshake, args=(found, address), name="tidemill-kv-proof", daemon=True
            ).start()

    def _handshake(self, found: socket.socket, address: tuple[object, ...]) -> None:
        try:
            link = accept(found, self._key)
        except (LinkError, OSError) as error:
            _log.warning("a connection from %s is not let in: %s", address[0], error)
            return
        finally:
            self._unproven.release()
        self._on_link(link)
