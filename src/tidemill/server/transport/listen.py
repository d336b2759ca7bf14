"""The listening socket, bound before anything is loaded, so that a port in use fails at once."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import resource
import socket
from typing import Any

from tidemill.base.errors import ErrorKind, TidemillError, config_error

BACKLOG = 2048


def bind(host: str, port: int, flag: str = "port") -> socket.socket:
    """A socket that listens on (host, port); connections wait until the server accepts them.

    Args:
        flag: that gives the port, for errors.

    Raises:
        TidemillError: RESOURCE when the port is in use, CONFIG when the address cannot be used.
    """
    if not 0 <= port < 65536:
        raise config_error(flag, f"--{flag} must be between 0 and 65535, got {port}")
    found = _addresses(host, port)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _bind_error(host, port, flag, error) from error
    return listener


def _addresses(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise config_error("host", f"{host!r} is no address of this machine: {error}") from error


def is_loopback(host: str) -> bool:
    """Whether a server on `host` is reachable only from this machine.

    Raises:
        TidemillError: kind CONFIG when `host` is not an address.
    """
    found = _addresses(host, 0)[0][4][0].partition("%")[0]
    return ipaddress.ip_address(found).is_loopback


def raise_file_limit(connections: int) -> int:
    """Raise RLIMIT_NOFILE for this number of connections, as far as the system allows.

    Returns:
        The number of connections that the limit allows.
    """
    own = 256  # sockets of the engine, the log, tokenizer files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, connections + own)
    if soft < connections + own:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, connections + own), hard))
            soft = min(hard, connections + own)
    return min(connections, max(16, soft - own))


def _bind_error(host: str, port: int, flag: str, error: OSError) -> TidemillError:
    if error.errno == errno.EADDRINUSE:
        return TidemillError(
            ErrorKind.RESOURCE,
            f"port {port} of {host} is in use, perhaps by another tidemill; stop what listens "
            f"there or choose another with --{flag} (0 takes a free one)",
            param=flag,
        )
    if error.errno == errno.EACCES:
        return config_error(flag, f"port {port} needs root's rights; choose one above 1023")
    return config_error("host", f"cannot listen on {host}: {os.strerror(error.errno or 0)}")


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
