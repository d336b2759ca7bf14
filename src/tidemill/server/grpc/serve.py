"""A gRPC server beside the HTTP server."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
from starlette.types import ASGIApp

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.server.access.limits import Limits
from tidemill.server.grpc.service import Service
from tidemill.server.transport.tls import Certificates

MAX_MESSAGE_BYTES = 2**22
"""Of a request, at most; gRPC's own default. A message is in memory before anything can be counted,
unlike a body of HTTP."""

MAX_CALLS = 1024
"""At once; a further one is RESOURCE_EXHAUSTED."""

OVERHEAD_BYTES = 2**16
"""Of a message, beyond the body that it becomes."""


class GrpcServer:
    """A running server.

    Args:
        app: the whole application.
        limits: bounds.
        host: address to listen on.
        port: of it; 0 takes a free one.
        certificates: for TLS; None: none.

    Attributes:
        port: that it listens on, once it is started.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        host: str,
        port: int,
        certificates: Certificates | None = None,
    ) -> None:
        most = min(MAX_MESSAGE_BYTES, limits.max_body_bytes + OVERHEAD_BYTES)
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),  # a port in use is an error
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", limits.max_answer_bytes),
                ("grpc.max_metadata_size", limits.max_head_bytes),
                # Clients ask whether the server is there, as often as they like within reason.
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
            maximum_concurrent_rpcs=min(MAX_CALLS, limits.max_connections),
        )
        self._server.add_generic_rpc_handlers((Service(app, limits).handler(),))
        self._host, self._wanted = host, port
        self._certificates = certificates
        self.port = 0

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            TidemillError: kind RESOURCE: the port is in use.
        """
        address = f"[{self._host}]" if ":" in self._host else self._host
        place = f"{address}:{self._wanted}"
        try:
            if self._certificates is None:
                self.port = self._server.add_insecure_port(place)
            else:
                self.port = self._server.add_secure_port(place, _credentials(self._certificates))
        except RuntimeError:
            raise TidemillError(
                ErrorKind.RESOURCE,
                f"port {self._wanted} of {self._host} cannot be used for gRPC; choose another with "
                "--grpc-port",
                param="grpc-port",
            ) from None
        await self._server.start()

    async def stop(self, seconds: float) -> None:
        """Take nothing new; what is being answered has so many seconds."""
        await self._server.stop(seconds)


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """The certificate as its files say when a connection begins."""
    known: tuple[object, grpc.ServerCertificateConfiguration] | None = None
    paths = certificates.paths

    def current() -> grpc.ServerCertificateConfiguration:
        nonlocal known
        stamp = tuple(_stamp(path) for path in paths)
        if known is None or known[0] != stamp:
            cert, key, authority = (None if p is None else p.read_bytes() for p in paths)
            pair = [(key or cert, cert)]
            known = stamp, grpc.ssl_server_certificate_configuration(pair, authority)
        return known[1]

    wants_clients = paths[2] is not None
    return grpc.dynamic_ssl_server_credentials(
        current(), current, require_client_authentication=wants_clients
    )


def _stamp(path: Path | None) -> object:
    if path is None:
        return None
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino
