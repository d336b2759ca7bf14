"""Listener: where other engines connect, and are let in if they know the key."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable

from tidemill.base.log import get_logger
from tidemill.transfer.arena import AVAILABLE
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
        local: name of its socket for processes of this machine (`link.connect_locally`); empty:
            there is none.

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
        self.local, sockets = "", [self._socket]
        if AVAILABLE:
            self.local = f"tidemill-kv-{secrets.token_hex(16)}"
            sockets.append(socket.socket(socket.AF_UNIX))
            sockets[1].bind("\0" + self.local)
            sockets[1].listen(64)
        self._sockets = sockets
        self._threads = [
            threading.Thread(target=self._run, args=(one,), name="tidemill-kv-listen", daemon=True)
            for one in sockets
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Listen no more."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)

    def _run(self, listening: socket.socket) -> None:
        while True:
            try:
                found, address = listening.accept()
            except OSError:
                return
            if not self._unproven.acquire(blocking=False):
                found.close()
                continue
            threading.Thread(
                target=self._handshake, args=(found, address), name="tidemill-kv-proof", daemon=True
            ).start()

    def _handshake(self, found: socket.socket, address: tuple[object, ...] | str) -> None:
        try:
            link = accept(found, self._key)
        except (LinkError, OSError) as error:
            where = address[0] if address else "this machine"
            _log.warning("a connection from %s is not let in: %s", where, error)
            return
        finally:
            self._unproven.release()
        self._on_link(link)
