"""uvicorn around the application, with signals left to whoever runs it."""

from __future__ import annotations

import contextlib

import uvicorn

from tidemill.server.app import build_app
from tidemill.server.context import ServerContext


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling: `server.run` has an engine to end as well."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Nothing."""
        return contextlib.nullcontext()


def make_server(context: ServerContext, *, drain_seconds: int) -> HttpServer:
    """A server for `context`; requests in flight have `drain_seconds` after `should_exit`."""
    config = uvicorn.Config(
        build_app(context),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=drain_seconds,
    )
    return HttpServer(config)
