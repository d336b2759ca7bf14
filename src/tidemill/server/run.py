"""`serve`: the API process and its engine process, from start to a clean end."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING

from tidemill.base.build import build_id
from tidemill.base.clock import monotonic
from tidemill.base.errors import model_file_error
from tidemill.base.files import OpenedFile, opened_files
from tidemill.base.heap import give_back, use_few_arenas
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.engine.identity import different_files
from tidemill.engine.supervisor import SupervisedEngine, Supervision
from tidemill.server.admission_options import AdmissionOptions
from tidemill.server.limits import Limits
from tidemill.server.listen import url_of
from tidemill.server.security import Security

if TYPE_CHECKING:
    from tidemill.engine.supervisor import Recovery
    from tidemill.metrics.registry import ServerMetrics
    from tidemill.server.context import ServerContext
    from tidemill.text.answering import ChatSide
    from tidemill.text.template import ChatTemplate
    from tidemill.text.tokenizer import Tokenizer

log = get_logger(__name__)

DRAIN_SECONDS = 10.0
"""How long requests in flight may go on after SIGTERM where nothing else was asked for."""

TERMINATION_SECONDS = 3
"""How long those that are ended have to be told so."""

MODEL_CHECK_SECONDS = 3.0
"""How long an engine that is still loading may take to find a fault of its own."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TextSide:
    """A model's tokenizer, chat template and sampling defaults.

    Attributes:
        chat: what the two can do in a chat; None finds it out.
        files: what was opened for them.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    chat: ChatSide | None = None
    files: tuple[OpenedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `serve` runs.

    Attributes:
        config: the engine's.
        load_text: opens the model's text side; called in a thread while the engine loads.
        log_level: of both processes.
        limits: bounds of the API.
        security: keys, certificates, origins.
        log_format: of both processes.
        admission: how much may wait, and how long.
        stall_timeout: seconds without progress after which the engine is replaced.
        drain_timeout: seconds that requests in flight have after the first signal; a second one
            ends them at once.
        aliases: names under which the model is served beside the engine's.
    """

    config: EngineConfig
    load_text: Callable[[], TextSide]
    log_level: str = "info"
    limits: Limits = field(default_factory=Limits)
    security: Security = field(default_factory=Security)
    log_format: str = "text"
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    stall_timeout: float = 5.0
    drain_timeout: float = DRAIN_SECONDS
    aliases: tuple[str, ...] = ()


def serve(options: ServeOptions, listener: socket.socket, *, say: Say = lambda line: None) -> int:
    """Serve until SIGTERM or SIGINT; both processes have ended when it returns.

    Args:
        options: what to run.
        listener: from `listen.bind`.
        say: told in a line each what is being done, what was chosen, and the URL when ready.

    Returns:
        The exit code: 0 after a signal, 1 when the engine was given up.

    Raises:
        TidemillError: mismatch it could not start.
    """
    import uvloop

    use_few_arenas()
    # What is made while starting stays: looking through it for garbage, now or later, finds none.
    gc.disable()
    return uvloop.run(_run(options, listener, say))


async def _run(options: ServeOptions, listener: socket.socket, say: Say) -> int:
    started = monotonic()
    signals = _Signals()
    recovery_metrics = _RecoveryMetrics()
    supervision = Supervision(
        stall_timeout=options.stall_timeout, on_recovery=recovery_metrics.on_recovery
    )
    level = _engine_level(options.log_level)
    spawning = asyncio.ensure_future(
        SupervisedEngine.open(options.config, say, log_level=level, supervision=supervision)
    )
    preparing = asyncio.ensure_future(_prepare(options))
    ready = asyncio.ensure_future(_start_failure(spawning, preparing))
    stopping = asyncio.ensure_future(signals.first.wait())
    await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not ready.done():
        ready.cancel()
        await _abort_start(spawning, preparing)
        say("stopped while loading")
        return 0
    if (failed := ready.result()) is not None:
        await _abort_start(spawning, preparing)
        raise failed
    engine, text = spawning.result(), preparing.result()
    if (mismatch := different_files(text.files, engine.info.files, only_common=True)) is not None:
        await engine.close()
        raise model_file_error(mismatch)
    gc.freeze()
    gc.enable()
    try:
        context = _make_context(options, engine, text)
        say(context.admission.describe())
        recovery_metrics.metrics = context.metrics
        http = _Http(context, listener, options.security)
        seconds = monotonic() - started
        url = url_of(listener, tls=options.security.certificates is not None)
        say(f"serving {' and '.join(context.names)} on {url} after {seconds:.1f} s")
        from tidemill.server.banner import first_steps

        for line in first_steps(context, url, closed=options.security.keys.closed):
            say(line)
        return await _until_stopped(http, engine, signals, options.drain_timeout, say)
    finally:
        await engine.close()


async def _start_failure(
    spawning: asyncio.Future[SupervisedEngine], preparing: asyncio.Future[TextSide]
) -> BaseException | None:
    """Why a start failed, once that is clear; None when both halves are there.

    What the engine says of a model's files goes before what its text lacks, so that a text's fault
    is held back until the engine has looked at them.
    """
    halves = (spawning, preparing)
    await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)
    await asyncio.wait((spawning,), timeout=MODEL_CHECK_SECONDS)
    return next((h.exception() for h in halves if h.done() and h.exception()), None)


async def _abort_start(
    spawning: asyncio.Future[SupervisedEngine], preparing: asyncio.Future[TextSide]
) -> None:
    """Half of the start failed, or it is not wanted any more: leave no engine behind."""
    spawning.cancel()
    await asyncio.gather(spawning, preparing, return_exceptions=True)
    if not spawning.cancelled() and spawning.exception() is None:
        await spawning.result().close()


class _Signals:
    """The first SIGINT or SIGTERM asks for the end, the second one hurries; so does SIGHUP (the
    terminal was closed) until something is there to be read again by it (`_Http`)."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # What nohup set to be ignored stays so.
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


class _RecoveryMetrics:
    """Recoveries on their way to the metrics, which come to life after the engine."""

    def __init__(self) -> None:
        self.metrics: ServerMetrics | None = None

    def on_recovery(self, recovery: Recovery) -> None:
        if self.metrics is not None:
            self.metrics.on_recovery(recovery.cause, recovery.seconds, recovery.replayed)


async def _prepare(options: ServeOptions) -> TextSide:
    # All while the engine starts. One after the other: both need the interpreter all the time, and
    # what reading a vocabulary took for a moment is free for modules then, and gone before the
    # engine has its weights.
    def open_both() -> TextSide:
        with opened_files() as opened:
            text = options.load_text()
            text = replace(text, files=text.files or tuple(opened.values()))
        give_back()
        import_module("tidemill.server.http")
        return text

    # The build is asked for when the engine is ready.
    text, _ = await asyncio.gather(asyncio.to_thread(open_both), asyncio.to_thread(build_id))
    return text


def _make_context(options: ServeOptions, engine: SupervisedEngine, text: TextSide) -> ServerContext:
    from tidemill.server.context import ServerContext

    context = ServerContext(
        client=engine,
        tokenizer=text.tokenizer,
        template=text.template,
        defaults=text.defaults,
        chat_side=text.chat,
        limits=options.limits,
        aliases=options.aliases,
        admission_options=options.admission,
        build=build_id(),
        config_digest=options.config.digest(),
    )
    engine.on_stats(context.metrics.update_engine)
    return context


class _Http:
    """The HTTP server and the task that runs it."""

    def __init__(self, context: ServerContext, listener: socket.socket, security: Security) -> None:
        from tidemill.server.http import make_server

        if security.reloadable:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload, security)
        self._reloading: asyncio.Task[None] | None = None
        self._server = make_server(context, drain_seconds=TERMINATION_SECONDS, security=security)
        self.task = asyncio.ensure_future(self._server.serve(sockets=[listener]))

    def _reload(self, security: Security) -> None:
        before = self._reloading

        async def reload() -> None:
            if before is not None:  # what is read last counts
                await asyncio.wait((before,))
            await security.reload()

        self._reloading = asyncio.ensure_future(reload())

    async def stop(self) -> None:
        """Listen no longer; answers under way have `TERMINATION_SECONDS` to be written."""
        self._server.stop()
        await self.task


async def _until_stopped(
    http: _Http, engine: SupervisedEngine, signals: _Signals, drain_timeout: float, say: Say
) -> int:
    """Serve, then drain: at once not ready and without new work, while streams finish."""
    stopping = asyncio.ensure_future(signals.first.wait())
    await asyncio.wait((http.task, engine.failed, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if engine.failed.done():
        say(f"stopping: {engine.failed.result().message}")
        await http.stop()
        return 1
    engine.drain("the server is shutting down and takes no new requests; send it again later")
    say(f"stopping; requests in flight have {drain_timeout:g} s (a second signal ends them)")
    idle = asyncio.ensure_future(engine.idle())
    second_signal = asyncio.ensure_future(signals.second.wait())
    await asyncio.wait(
        (idle, second_signal, engine.failed, http.task),
        timeout=drain_timeout,
        return_when=asyncio.FIRST_COMPLETED,
    )
    if not idle.done():
        say("ending the requests that are left")
        await engine.close()  # each gets the reason and that a retry may succeed
    idle.cancel()
    second_signal.cancel()
    await http.stop()
    return 0


def _engine_level(level: str) -> str:
    # What the engine says while it starts is printed by `say`; twice would be noise.
    return "warning" if level == "info" else level
