"""Addresses of this machine that nobody listens at."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def free_address() -> str:
    """HOST:PORT with a free port of 127.0.0.1."""
    return f"127.0.0.1:{free_port()}"
