"""`serve`: the API process and its engine process, from start to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import uvicorn

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.engine.build import build_id
from tidemill.engine.spawn import EngineProcess, spawn_engine
from tidemill.server.app import build_app
from tidemill.server.context import ServerContext
from tidemill.server.limits import Limits
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer

log = get_logger(__name__)

DRAIN_SECONDS = 10
"""How long requests in flight may go on after SIGTERM; a second signal ends them at once."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `serve` runs.

    Attributes:
        config: the engine's.
        tokenizer, template: the model's text side.
        defaults: sampling defaults of the model.
        host, port: where to listen.
        log_level: of both processes.
        limits: bounds of the API.
    """

    config: EngineConfig
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    log_level: str = "info"
    limits: Limits = field(default_factory=Limits)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to (host, port), not yet listening; done before anything is loaded.

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
        listener.listen(2048)
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


class _Server(uvicorn.Server):
    """uvicorn, with signals taken by `_run`, which has an engine to end as well."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Nothing: see `_run`."""
        return contextlib.nullcontext()


def serve(
    options: ServeOptions,
    listener: socket.socket,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> int:
    """Serve until SIGTERM or SIGINT; both processes have ended when it returns.

    Args:
        options: what to run.
        listener: from `bind`.
        say: told in a line each what is being done, what was chosen, and the URL when ready.

    Returns:
        The exit code: 0 after a signal, 1 when the engine died.

    Raises:
        TidemillError: why it could not start.
    """
    import uvloop

    return uvloop.run(_run(options, listener, say))


async def _run(options: ServeOptions, listener: socket.socket, say: Callable[[str], None]) -> int:
    started = monotonic()
    stop = asyncio.Event()
    server: _Server | None = None

    def on_signal() -> None:
        if stop.is_set() and server is not None:
            server.force_exit = True
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)

    starting = asyncio.ensure_future(
        spawn_engine(options.config, say, log_level=_engine_level(options.log_level))
    )
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        say("stopped while loading")
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return 0
    engine, client = starting.result()
    context = ServerContext(
        client=client,
        tokenizer=options.tokenizer,
        template=options.template,
        defaults=options.defaults,
        limits=options.limits,
        build=build_id(),
        config_digest=options.config.digest(),
    )
    client.on_stats(context.metrics.update_engine)
    server = _Server(_uvicorn_config(context, options))
    try:
        return await _serve_until_stopped(server, engine, listener, context, stop, say, started)
    finally:
        stopping.cancel()
        await client.close()
        await engine.stop()


async def _serve_until_stopped(
    server: _Server,
    engine: EngineProcess,
    listener: socket.socket,
    context: ServerContext,
    stop: asyncio.Event,
    say: Callable[[str], None],
    started: float,
) -> int:
    http = asyncio.ensure_future(server.serve(sockets=[listener]))
    died = asyncio.ensure_future(engine.wait())
    stopping = asyncio.ensure_future(stop.wait())
    say(f"serving {context.info.model} on {_url(listener)} after {monotonic() - started:.1f} s")
    await asyncio.wait((http, died, stopping), return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if died.done():
        log.error("the engine process ended with code %s; the server stops", died.result())
        code = 1
    elif stopping.done():
        say(f"stopping; requests in flight have {DRAIN_SECONDS} s (a second signal ends them)")
    server.should_exit = True
    await http
    for task in (died, stopping):
        task.cancel()
    await asyncio.gather(died, stopping, return_exceptions=True)
    return code


def _uvicorn_config(context: ServerContext, options: ServeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(context),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )


def _engine_level(level: str) -> str:
    # What the engine says while it starts is printed by `say`; twice would be noise.
    return "warning" if level == "info" else level


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
