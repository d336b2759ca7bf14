"""`serve`: the API process and its engine process, from start to a clean end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.engine.build import build_id
from tidemill.engine.spawn import EngineProcess, spawn_engine
from tidemill.server.limits import Limits
from tidemill.server.listen import url_of

if TYPE_CHECKING:
    from tidemill.engine.client import SocketClient
    from tidemill.server.http import HttpServer
    from tidemill.text.template import ChatTemplate
    from tidemill.text.tokenizer import Tokenizer

log = get_logger(__name__)

DRAIN_SECONDS = 10
"""How long requests in flight may go on after SIGTERM; a second signal ends them at once."""

FAREWELL_SECONDS = 3
"""How long those that are ended have to be told so."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TextSide:
    """A model's tokenizer, chat template and sampling defaults."""

    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: Mapping[str, float | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `serve` runs.

    Attributes:
        config: the engine's.
        load_text: opens the model's text side; called in a thread while the engine loads.
        log_level: of both processes.
        limits: bounds of the API.
    """

    config: EngineConfig
    load_text: Callable[[], TextSide]
    log_level: str = "info"
    limits: Limits = field(default_factory=Limits)


def serve(options: ServeOptions, listener: socket.socket, *, say: Say = lambda line: None) -> int:
    """Serve until SIGTERM or SIGINT; both processes have ended when it returns.

    Args:
        options: what to run.
        listener: from `listen.bind`.
        say: told in a line each what is being done, what was chosen, and the URL when ready.

    Returns:
        The exit code: 0 after a signal, 1 when the engine died.

    Raises:
        TidemillError: why it could not start.
    """
    import uvloop

    return uvloop.run(_run(options, listener, say))


async def _run(options: ServeOptions, listener: socket.socket, say: Say) -> int:
    started = monotonic()
    stop = asyncio.Event()
    signals = _Signals(stop)
    spawning = asyncio.ensure_future(
        spawn_engine(options.config, say, log_level=_engine_level(options.log_level))
    )
    preparing = asyncio.ensure_future(asyncio.to_thread(_prepare, options))
    ready = asyncio.gather(spawning, preparing)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    stopped = not ready.done()
    if stopped or ready.exception() is not None:
        await _abandon(spawning, preparing)
        if not stopped:
            ready.result()
        if not ready.cancelled():
            ready.exception()  # looked at: how the halves ended is nobody's concern any more
        say("stopped while loading")
        return 0
    (engine, client), text = ready.result()
    try:
        server = _make_server(options, client, text)
        signals.server = server
        http = asyncio.ensure_future(server.serve(sockets=[listener]))
        seconds = monotonic() - started
        say(f"serving {client.info.model} on {url_of(listener)} after {seconds:.1f} s")
        return await _until_stopped(server, http, engine, client, stop, say)
    finally:
        await client.close()
        await engine.stop()


async def _abandon(
    spawning: asyncio.Future[tuple[EngineProcess, SocketClient]],
    preparing: asyncio.Future[TextSide],
) -> None:
    """Half of the start failed, or it is not wanted any more: leave no engine behind."""
    spawning.cancel()
    await asyncio.gather(spawning, preparing, return_exceptions=True)
    if not spawning.cancelled() and spawning.exception() is None:
        engine, client = spawning.result()
        await client.close()
        await engine.stop()


class _Signals:
    """The first SIGINT or SIGTERM asks for the end, the second one insists."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.server: HttpServer | None = None
        self._stop = stop
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        if self._stop.is_set() and self.server is not None:
            self.server.force_exit = True
        self._stop.set()


def _prepare(options: ServeOptions) -> TextSide:
    # The web framework takes as long to import as the engine to start: side by side.
    import tidemill.server.http  # noqa: F401

    return options.load_text()


def _make_server(options: ServeOptions, client: SocketClient, text: TextSide) -> HttpServer:
    from tidemill.server.context import ServerContext
    from tidemill.server.http import make_server

    context = ServerContext(
        client=client,
        tokenizer=text.tokenizer,
        template=text.template,
        defaults=text.defaults,
        limits=options.limits,
        build=build_id(),
        config_digest=options.config.digest(),
    )
    client.on_stats(context.metrics.update_engine)
    return make_server(context, drain_seconds=DRAIN_SECONDS + FAREWELL_SECONDS)


async def _until_stopped(
    server: HttpServer,
    http: asyncio.Future[None],
    engine: EngineProcess,
    client: SocketClient,
    stop: asyncio.Event,
    say: Say,
) -> int:
    died = asyncio.ensure_future(engine.wait())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((http, died, stopping), return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if died.done():
        log.error("the engine process ended with code %s; the server stops", died.result())
        code = 1
    elif stopping.done():
        say(f"stopping; requests in flight have {DRAIN_SECONDS} s (a second signal ends them)")
    server.should_exit = True
    _, pending = await asyncio.wait((http,), timeout=DRAIN_SECONDS)
    if pending:
        say("ending the requests that are left")
        await client.close()  # each is told why and that another try may succeed
    await http
    for task in (died, stopping):
        task.cancel()
    await asyncio.gather(died, stopping, return_exceptions=True)
    return code


def _engine_level(level: str) -> str:
    # What the engine says while it starts is printed by `say`; twice would be noise.
    return "warning" if level == "info" else level
