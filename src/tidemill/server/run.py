"""`serve`: starts the API process and its engine process, serves, and shuts both down."""

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
from tidemill.server.access.limits import Limits
from tidemill.server.access.security import Security
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.transport.listen import url_of

if TYPE_CHECKING:
    from tidemill.engine.supervisor import Recovery
    from tidemill.metrics.registry import ServerMetrics
    from tidemill.server.context import ServerContext
    from tidemill.text.answering import ChatSide
    from tidemill.text.template import ChatTemplate
    from tidemill.text.tokenizer import Tokenizer

log = get_logger(__name__)

DRAIN_SECONDS = 10.0
"""Default of --drain-timeout: seconds for requests in flight after SIGTERM."""

TERMINATION_SECONDS = 3
"""Seconds to write the error responses of requests that are ended."""

MODEL_CHECK_SECONDS = 3.0
"""Seconds in which an engine that is still loading may report an error of its own."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TextSide:
    """A model's tokenizer, chat template and sampling defaults.

    Attributes:
        chat: what both support in a chat.
        files: the files that were opened for them.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    chat: ChatSide
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    files: tuple[OpenedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Settings of `serve`.

    Attributes:
        config: the engine's configuration.
        load_text: opens tokenizer and template; runs in a thread while the engine loads.
        log_level: of both processes.
        limits: bounds of the API.
        security: keys, certificates, origins.
        log_format: of both processes.
        admission: bounds of the queue.
        stall_timeout: seconds without progress after which the engine is replaced.
        drain_timeout: seconds for requests in flight after the first signal; a second signal
            ends them at once.
        aliases: further names of the served model.
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
    """Serve until SIGTERM or SIGINT; on return both processes have ended.

    Args:
        options: what to run.
        listener: from `listen.bind`.
        say: called with each line of progress: effective settings, and the URL when ready.

    Returns:
        The exit code: 0 after a signal, 1 when the engine could not be restarted.

    Raises:
        TidemillError: mismatch it could not start.
    """
    import uvloop

    use_few_arenas()
    # Objects created during start live as long as the process: collection would find no garbage.
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
        say(context.host.default.admission.describe())
        recovery_metrics.metrics = context.metrics
        http = _Http(context, listener, options.security)
        seconds = monotonic() - started
        url = url_of(listener, tls=options.security.certificates is not None)
        say(f"serving {' and '.join(context.host.names)} on {url} after {seconds:.1f} s")
        from tidemill.server.banner import first_steps

        for line in first_steps(context.host.default, url, closed=options.security.keys.closed):
            say(line)
        return await _until_stopped(http, engine, signals, options.drain_timeout, say)
    finally:
        await engine.close()


async def _start_failure(
    spawning: asyncio.Future[SupervisedEngine], preparing: asyncio.Future[TextSide]
) -> BaseException | None:
    """Wait for engine and text side; the exception if one failed, else None.

    The engine's errors about model files take precedence. So an error of the text side is reported
    only after the engine had `MODEL_CHECK_SECONDS` to check the files.
    """
    halves = (spawning, preparing)
    await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)
    await asyncio.wait((spawning,), timeout=MODEL_CHECK_SECONDS)
    return next((h.exception() for h in halves if h.done() and h.exception()), None)


async def _abort_start(
    spawning: asyncio.Future[SupervisedEngine], preparing: asyncio.Future[TextSide]
) -> None:
    """Abort a failed or cancelled start, and stop an engine that was started."""
    spawning.cancel()
    await asyncio.gather(spawning, preparing, return_exceptions=True)
    if not spawning.cancelled() and spawning.exception() is None:
        await spawning.result().close()


class _Signals:
    """The first SIGINT or SIGTERM starts draining, the second one ends it. SIGHUP (the terminal was
    closed) does the same until `_Http` installs a reload handler for it."""

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
    """Forwards recoveries to the metrics, which are created after the engine."""

    def __init__(self) -> None:
        self.metrics: ServerMetrics | None = None

    def on_recovery(self, recovery: Recovery) -> None:
        if self.metrics is not None:
            self.metrics.on_recovery(recovery.cause, recovery.seconds, recovery.replayed)


async def _prepare(options: ServeOptions) -> TextSide:
    # Runs while the engine starts. Sequential, since both parts hold the GIL: imports can reuse the
    # temporary memory of the vocabulary, which is released before the engine has its weights.
    def open_both() -> TextSide:
        with opened_files() as opened:
            text = options.load_text()
            text = replace(text, files=text.files or tuple(opened.values()))
        give_back()
        import_module("tidemill.server.app")
        return text

    # `build_id` is cached for when the engine is ready.
    text, _ = await asyncio.gather(asyncio.to_thread(open_both), asyncio.to_thread(build_id))
    return text


def _make_context(options: ServeOptions, engine: SupervisedEngine, text: TextSide) -> ServerContext:
    from tidemill.server.context import ServerContext
    from tidemill.server.host.served import ServedModel

    context = ServerContext(limits=options.limits, build=build_id())
    context.host.add(
        ServedModel(
            client=engine,
            tokenizer=text.tokenizer,
            template=text.template,
            chat=text.chat,
            defaults=text.defaults,
            admission=context.shared.admission(options.admission, lambda: engine.info),
            aliases=options.aliases,
            build=context.build,
            config_digest=options.config.digest(),
        )
    )
    engine.on_stats(context.metrics.update_engine)
    return context


class _Http:
    """The HTTP server and the task that runs it."""

    def __init__(self, context: ServerContext, listener: socket.socket, security: Security) -> None:
        from tidemill.server.app import make_http_server

        if security.reloadable:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload, security)
        self._reloading: asyncio.Task[None] | None = None
        self._server = make_http_server(
            context, drain_seconds=TERMINATION_SECONDS, security=security
        )
        self.task = asyncio.ensure_future(self._server.serve(sockets=[listener]))

    def _reload(self, security: Security) -> None:
        before = self._reloading

        async def reload() -> None:
            if before is not None:  # reloads run in order; the last one counts
                await asyncio.wait((before,))
            await security.reload()

        self._reloading = asyncio.ensure_future(reload())

    async def stop(self) -> None:
        """Stop listening; answers in flight have `TERMINATION_SECONDS` to be written."""
        self._server.stop()
        await self.task


async def _until_stopped(
    http: _Http, engine: SupervisedEngine, signals: _Signals, drain_timeout: float, say: Say
) -> int:
    """Serve, then drain: /readyz fails and new requests are rejected while streams finish."""
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
        say("ending the remaining requests")
        await engine.close()  # each gets the reason and that a retry may succeed
    idle.cancel()
    second_signal.cancel()
    await http.stop()
    return 0


def _engine_level(level: str) -> str:
    # `say` already prints the progress of the engine's start.
    return "warning" if level == "info" else level
