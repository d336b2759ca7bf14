"""What a service manager (systemd) gives a server: a listening socket, and an ear for its state.

The protocols are those of sd_listen_fds(3) and sd_notify(3). The socket outlives the server: while
one stops and the next one starts, connections wait in it, and none is refused.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass

from tidemill.base.errors import config_error

_FIRST_FD = 3


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """What was found in the environment.

    Attributes:
        listener: a TCP socket that listens already; None: the server opens its own.
        ear: address of the socket that is told of the server's state; None: nobody asks.
    """

    listener: socket.socket | None = None
    ear: str | None = None

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Take what is for this process out of an environment, so that no child inherits it.

        Raises:
            TidemillError: kind CONFIG: there are several sockets, or one that is not TCP.
        """
        process = environment.pop("LISTEN_PID", "")
        count = environment.pop("LISTEN_FDS", "")
        environment.pop("LISTEN_FDNAMES", None)
        ear = environment.pop("NOTIFY_SOCKET", None)
        listener = None
        if process == str(os.getpid()) and count.isdecimal() and int(count):
            listener = _listener(int(count))
        return cls(listener, ear)

    def tell(self, state: str) -> None:
        """Say what the server is doing: lines such as ``READY=1``."""
        if not self.ear:
            return
        address = "\0" + self.ear[1:] if self.ear.startswith("@") else self.ear
        # A manager that has gone does not end the server.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            ear.setblocking(False)
            ear.sendto(state.encode(), address)


def _listener(count: int) -> socket.socket:
    if count != 1:
        raise config_error(
            "LISTEN_FDS", f"the service manager passes {count} sockets; one server listens on one"
        )
    try:
        found = socket.socket(fileno=_FIRST_FD)
    except OSError as error:
        raise config_error(
            "LISTEN_FDS", f"file descriptor {_FIRST_FD} is no socket: {error}"
        ) from error
    family, kind = found.family, found.type
    listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    tcp = family in (socket.AF_INET, socket.AF_INET6) and kind == socket.SOCK_STREAM
    if not (tcp and listens):
        found.detach()
        raise config_error(
            "LISTEN_FDS",
            "the service manager's socket is no TCP socket that listens; its unit says "
            "ListenStream=ADDRESS:PORT and Accept=no",
        )
    os.set_inheritable(_FIRST_FD, False)
    return found
