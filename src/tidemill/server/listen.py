"""The listening socket: taken before anything is loaded, so that a port in use is known at once."""

from __future__ import annotations

import errno
import os
import socket

from tidemill.base.errors import ErrorKind, TidemillError, config_error

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens on (host, port); connections wait until the server takes them.

    Raises:
        TidemillError: RESOURCE when the port is in use, CONFIG when the address cannot be used.
    """
    if not 0 <= port < 65536:
        raise config_error("port", f"--port must be between 0 and 65535, got {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise config_error("host", f"{host!r} is no address of this machine: {error}") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _bind_error(host, port, error) from error
    return listener


def _bind_error(host: str, port: int, error: OSError) -> TidemillError:
    if error.errno == errno.EADDRINUSE:
        return TidemillError(
            ErrorKind.RESOURCE,
            f"port {port} of {host} is in use, perhaps by another tidemill; stop what listens "
            "there or choose another with --port (0 takes a free one)",
            param="port",
        )
    if error.errno == errno.EACCES:
        return config_error("port", f"port {port} needs root's rights; choose one above 1023")
    return config_error("host", f"cannot listen on {host}: {os.strerror(error.errno or 0)}")


def url_of(listener: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
