"""Connections to one target: kept while they are idle, and never more than a bound."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from tidemill.base.clock import monotonic
from tidemill.gateway.wire.connection import Connection, Lost

KEPT_SECONDS = 4.0
"""Servers close what is idle for 5 s and longer; what is kept for less meets no closed one."""


class Full(Exception):
    """All connections to the target are in use."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a target is.

    Attributes:
        host, port, tls: of its server.
        path: before every route, without a slash at its end.
    """

    host: str
    port: int
    tls: bool
    path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Split a base URL. Raises ValueError where it is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(f"{url!r} is no http(s) URL of a server")
        if parts.username or parts.password:
            raise ValueError("a URL may hold no credentials; name a variable with key_env")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Pool:
    """See the module docstring.

    Args:
        address: of the target.
        most: connections at a time.
        connect_seconds: for a new one.
    """

    def __init__(self, address: Address, most: int, connect_seconds: float) -> None:
        self._address = address
        self._most = most
        self._seconds = connect_seconds
        self._idle: list[Connection] = []
        self._open = 0
        self._tls = ssl.create_default_context() if address.tls else None
        self.make: Callable[[], Connection] = Connection

    @property
    def open(self) -> int:
        """Connections that answer a request."""
        return self._open

    @property
    def full(self) -> bool:
        """All are in use."""
        return self._open >= self._most

    @asynccontextmanager
    async def exchange(self, request: bytes) -> AsyncIterator[Connection]:
        """Send a request; the answer may be read inside, and is given up at the end.

        Raises:
            Full: see there.
            Lost: it could not be sent.
        """
        if self.full:
            raise Full
        self._open += 1
        connection: Connection | None = None
        try:
            connection = await self._sent(request)
            yield connection
        finally:
            self._open -= 1
            if connection is not None:
                if connection.reusable:
                    connection.freed = monotonic()
                    self._idle.append(connection)
                else:
                    connection.abort()

    async def _sent(self, request: bytes) -> Connection:
        fresh = monotonic() - KEPT_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.freed < fresh:
                connection.abort()
            elif not connection.closed:
                connection.send(request)
                return connection
        connection = await self._connected()
        connection.send(request)
        return connection

    async def _connected(self) -> Connection:
        address = self._address
        try:
            async with asyncio.timeout(self._seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    self.make, address.host, address.port, ssl=self._tls
                )
        except TimeoutError:
            raise Lost(f"no connection within {self._seconds:g} s", unsent=True) from None
        except (OSError, ssl.SSLError) as error:
            what = error.strerror or type(error).__name__
            raise Lost(f"no connection: {what}", unsent=True) from None
        return connection

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
