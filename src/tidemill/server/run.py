"""`serve`: starts the API process and the engine processes, serves, and shuts them all down."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.build import build_id
from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError
from tidemill.base.heap import use_few_arenas
from tidemill.base.log import get_logger
from tidemill.contract.config import EngineConfig
from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults
from tidemill.contract.wire import EngineInfo, EngineStats
from tidemill.engine.supervisor import SupervisedEngine, Supervision
from tidemill.server.access.limits import Limits
from tidemill.server.access.security import Security
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.transport.listen import url_of
from tidemill.server.transport.systemd import ServiceManager

if TYPE_CHECKING:
    from tidemill.engine.supervisor import Recovery
    from tidemill.metrics.registry import ServerMetrics
    from tidemill.server.app import Extension
    from tidemill.server.context import ServerContext
    from tidemill.server.grpc.serve import GrpcServer
    from tidemill.server.host.engine_loader import EngineLoader, TextSide
    from tidemill.server.host.manager import ModelManager
    from tidemill.server.host.pipelines.options import PipelineOptions
    from tidemill.server.host.pipelines.pipeline import Pipeline
    from tidemill.server.host.served import ServedModel
    from tidemill.server.host.source import ModelOptions, NameOptions, Source
    from tidemill.server.quotas.service import QuotaService
    from tidemill.store.location import Location
    from tidemill.telemetry.otel_options import OtelOptions

log = get_logger(__name__)

DRAIN_SECONDS = 10.0
"""Default of --drain-timeout: seconds for requests in flight after SIGTERM."""

RECENT_REQUESTS = 512
"""Default of --recent-requests."""

TERMINATION_SECONDS = 3
"""Seconds to write the error responses of requests that are ended."""

STOP_SECONDS = 15.0
"""Seconds that engines and the database have to end when every request has."""

Say = Callable[[str], None]
OnStats = Callable[[EngineStats], None]
WatchSteps = Callable[[str, EngineInfo, "ServerMetrics"], OnStats | None]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Settings of `serve`.

    Attributes:
        models: at least one. The first is loaded before the server is ready, and answers requests
            that name none; the others are loaded when a request needs them, unless pinned.
        pipelines: files that answer under names of their own.
        memory: bytes for all models together; None: without bound.
        names: names with versions. Of models ``name@version`` that belong to none of them, the
            highest version answers to the name alone.
        state_folder: where the state of rollouts is kept over restarts; None: nowhere.
        log_level: of both processes.
        limits: bounds of the API.
        security: keys, certificates, origins.
        log_format: of both processes.
        admission: bounds of the queue.
        stall_timeout: seconds without progress after which the engine is replaced.
        drain_timeout: seconds for requests in flight after the first signal; a second signal
            ends them at once.
        grpc: address and port of the KServe protocol over gRPC; None: it is not served.
        source: where the models are described, so that they can change while the server runs.
        database: where keys, limits, usage and audit are kept; None: nowhere.
        home: ``TIDEMILL_HOME``, where requests are recorded before they are in the database; None:
            they are not recorded.
        page: see `ServerContext.page`.
        resumable_streams: see `ServerContext.resumable`.
        keep_content: stored responses and conversations are kept in the database.
        prices: of models.
        quotas: limits of each level.
        database_outage: seconds for which limits are spent while the database does not answer.
        recent_requests: how many requests can be explained after they have ended; 0: none.
        keep_explanations: seconds that the database keeps those of all requests; 0: it does not.
        metrics_aliases: see `ServerMetrics.aliases`.
        otel: where OpenTelemetry's spans and metrics go; None: nowhere.
        manager: what started this process; if it gave the socket, that has a next owner.
        energy: requests are charged with it, where it is known.
        watts, carbon_intensity: see `server.energy.measure`.
        watch_steps: given a model's name, its engine's properties and the server's metrics:
            what the engine's statistics are also given to, if anything; None: nothing is.
        extend: given the server's context: what it has beside its models; None: nothing.
    """

    models: Sequence[ModelOptions]
    pipelines: Sequence[PipelineOptions] = ()
    memory: int | None = None
    names: Sequence[NameOptions] = ()
    state_folder: Path | None = None
    log_level: str = "info"
    limits: Limits = field(default_factory=Limits)
    security: Security = field(default_factory=Security)
    log_format: str = "text"
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    stall_timeout: float = 5.0
    drain_timeout: float = DRAIN_SECONDS
    grpc: tuple[str, int] | None = None
    source: Source | None = None
    database: Location | None = None
    home: Path | None = None
    page: bool = True
    resumable_streams: bool = False
    keep_content: bool = False
    prices: Prices = field(default_factory=Prices)
    quotas: Defaults = field(default_factory=Defaults)
    database_outage: float = 3600.0
    recent_requests: int = RECENT_REQUESTS
    keep_explanations: float = 0.0
    metrics_aliases: str = ""
    otel: OtelOptions | None = None
    manager: ServiceManager = field(default_factory=ServiceManager)
    energy: bool = True
    watts: float | None = None
    carbon_intensity: str | None = None
    watch_steps: WatchSteps | None = None
    extend: Callable[[ServerContext], Extension] | None = None


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
    signals = _Signals(managed=options.manager.ear is not None)
    assembly = _Assembly(options, say)
    loading = asyncio.ensure_future(assembly.load_first())
    stopping = asyncio.ensure_future(signals.first.wait())
    await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not loading.done():
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        say("stopped while loading")
        return 0
    context = loading.result()
    gc.freeze()
    gc.enable()
    extension: Extension | None = None
    try:
        first = context.host.models[0]
        say(first.admission.describe())
        extension = None if options.extend is None else options.extend(context)
        http = _Http(context, listener, options.security, extension)
        if options.grpc is not None:
            say(await http.serve_grpc(context.limits, *options.grpc))
        seconds = monotonic() - started
        url = url_of(listener, tls=options.security.certificates is not None)
        say(f"serving {_listed(context.host.names)} on {url} after {seconds:.1f} s")
        if assembly.limits is not None:
            assembly.limits.start()
        if options.security.stored is not None and context.storage is not None:
            options.security.stored.follow(context.storage)
        from tidemill.server.banner import first_steps

        for line in first_steps(first, url, closed=options.security.keys.closed):
            say(line)
        options.manager.tell("READY=1")
        if extension is not None:
            extension.start()
            if context.manager is not None:
                context.manager.follow_upstream = extension.reload
        return await _until_stopped(http, context, signals, options, say)
    finally:
        if extension is not None:
            await extension.close()
        await context.host.close()
        await context.close()


@asynccontextmanager
async def assembled(
    options: ServeOptions, say: Say = lambda line: None
) -> AsyncIterator[ServerContext]:
    """What a server serves, without a server: the first model is loaded.

    Args:
        options: what to run.
        say: called with each line of progress.
    """
    context = await _Assembly(options, say).load_first()
    try:
        yield context
    finally:
        await context.host.close()


_LISTED = 6


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    shown = " and ".join(names[:_LISTED])
    return shown if more <= 0 else f"{shown} and {more} more"


class _Assembly:
    """Makes the server's context, around the first model, and the loaders of the others.

    What the context needs is imported while the first model loads.
    """

    def __init__(self, options: ServeOptions, say: Say) -> None:
        self._options = options
        self._say = say
        self._made: ServerContext | None = None
        self.limits: QuotaService | None = None

    def _context(self) -> ServerContext:
        from tidemill.server.context import ServerContext
        from tidemill.server.host.host import ModelHost

        if self._made is None:
            options = self._options
            self._made = ServerContext(
                limits=options.limits,
                build=build_id(),
                host=ModelHost(budget=options.memory),
                state_folder=options.state_folder,
                keys=options.security.keys,
                home=options.home,
                page=options.page,
                resumable=options.resumable_streams,
            )
            self._made.metrics.aliases = options.metrics_aliases
            if options.database is not None:
                from tidemill.server.batches.open import go_on
                from tidemill.server.retention import keep_content

                self._made.open_database(options.database)
                go_on(self._made)
                keep_content(self._made, options.home if options.keep_content else None)
                if options.home is not None:
                    from tidemill.server.records import keep_records

                    keep_records(self._made, options.home, options.prices)
            if options.recent_requests or options.otel is not None:
                self._made.keep_recent(options.recent_requests, options.prices)
                if options.database is not None and options.keep_explanations:
                    from tidemill.server.explanations import keep_explanations

                    keep_explanations(self._made, options.keep_explanations)
            if options.energy and self._made.recording is not None:
                from tidemill.server.energy import measure

                measure(self._made, options.watts, options.carbon_intensity)
            if options.otel is not None:
                from tidemill.server.tracing import export

                scheme = "http" if options.security.certificates is None else "https"
                export(self._made, options.otel, scheme)
            self.limits = self._made.limit(options.quotas, options.prices, options.database_outage)
        return self._made

    async def load_first(self) -> ServerContext:
        """Load what is to be there before the server is ready."""
        first, *others = self._options.models
        opening = self.loader(first, self._say)
        loaded = await opening.load(None)
        context = self._context()
        host = context.host
        try:
            slot = host.add_loaded(first.hosted, opening, loaded)
            if self._options.memory is not None:
                slot.need = await opening.need()
            for model in others:
                host.add(model.hosted, self.loader(model))
            for options in self._options.pipelines:
                self.pipeline(options).add()
            self._name_versions(context)
            self._manage(context)
            for slot in host.slots[1:]:
                if slot.hosted.pin:
                    await host.load(slot)
            for slot in host.slots:
                if slot.loaded is not None:
                    await slot.adapters.verify(slot.loaded.served.client)
            if host.folders is not None:
                await host.folders.look()
        except BaseException:
            await host.close()
            raise
        return context

    def pipeline(self, options: PipelineOptions) -> Pipeline:
        """A pipeline, which is its own loader."""
        from tidemill.server.host.pipelines.pipeline import Pipeline

        context = self._context()
        pipeline = Pipeline(options, context.host, context.shared, context.metrics, context.build)
        pipeline.served.explain = context.recent is not None
        return pipeline

    def _name_versions(self, context: ServerContext) -> None:
        """Names with versions; what they need is imported where there are any."""
        host = context.host
        self._follow_names(self._options.names)
        if any("@" in slot.name for slot in host.slots):
            context.versions().group()

        def added(name: str) -> None:
            if "@" in name:
                context.versions().added(name)

        host.on_added = added

    def _follow_names(self, names: Sequence[NameOptions]) -> None:
        context = self._context()
        if names or context.host.versions is not None:
            context.versions().follow(names)

    def loader(self, model: ModelOptions, say: Say | None = None) -> EngineLoader:
        """What loads a model; without `say`, its progress goes to the log."""
        from tidemill.server.host.engine_loader import EngineLoader

        return EngineLoader(
            model.locate,
            partial(self._serve, model),
            supervision=partial(self._supervision, model),
            log_level=_engine_level(self._options.log_level),
            kv_reserve=self._budget(),
            say=say or partial(_log_line, model.name),
        )

    def _budget(self) -> int | None:
        return self._options.memory if self._made is None else self._made.host.budget

    def _manage(self, context: ServerContext) -> None:
        if self._options.source is None:
            return
        from tidemill.server.host.manager import ModelManager

        source = self._options.source
        manager = ModelManager(context.host, source, self.loader, self.pipeline, self._follow_names)
        context.manager = manager
        context.host.look, context.host.glance = manager.look, manager.glance
        if self._options.security.reloadable:
            manager.on_reload.append(self._options.security.reload)

    def _serve(
        self, model: ModelOptions, engine: SupervisedEngine, text: TextSide, config: EngineConfig
    ) -> ServedModel:
        from tidemill.server.host.served import ServedModel

        context = self._context()
        metrics = context.metrics.of(model.name)
        told = context.on_stats(model.name, metrics.update_engine)
        engine.on_stats(self._watched(model.name, engine.info, told))
        for loaded in context.on_loaded:
            loaded(engine.info.device)
        return ServedModel(
            client=engine,
            tokenizer=text.tokenizer,
            template=text.template,
            chat=text.chat,
            defaults=text.defaults,
            preset=text.preset,
            admission=context.shared.admission(
                model.name, self._options.admission, lambda: engine.info
            ),
            metrics=metrics,
            aliases=model.aliases,
            build=context.build,
            config_digest=config.digest(),
            explain=context.recent is not None,
        )

    def _watched(self, model: str, info: EngineInfo, told: OnStats) -> OnStats:
        """What an engine's statistics are given to: `told`, and what watches its steps."""
        watch = self._options.watch_steps
        if watch is None or (watched := watch(model, info, self._context().metrics)) is None:
            return told

        def both(stats: EngineStats) -> None:
            told(stats)
            watched(stats)

        return both

    def _supervision(self, model: ModelOptions) -> Supervision:
        def on_recovery(recovery: Recovery) -> None:
            metrics = self._context().metrics.of(model.name)
            metrics.on_recovery(recovery.cause, recovery.seconds, recovery.replayed)

        return Supervision(stall_timeout=self._options.stall_timeout, on_recovery=on_recovery)


def _log_line(model: str, line: str) -> None:
    log.info("%s: %s", model, line)


class _Signals:
    """The first SIGINT or SIGTERM starts draining, the second one ends it. SIGHUP (the terminal was
    closed) does the same until `_Http` installs a reload handler for it; from a service manager it
    means a reload alone."""

    def __init__(self, *, managed: bool) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # What nohup set to be ignored stays so.
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                loop.add_signal_handler(number, self._received)
        if managed:
            loop.add_signal_handler(signal.SIGHUP, log.warning, "there is nothing to reload (yet)")

    def _received(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


class _Http:
    """The HTTP server and the task that runs it."""

    def __init__(
        self,
        context: ServerContext,
        listener: socket.socket,
        security: Security,
        extension: Extension | None,
    ) -> None:
        from tidemill.server.app import DIALECTS, OPERATORS, make_http_server

        manager = context.manager
        if security.reloadable or (manager is not None and manager.source.reloadable):
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGHUP, self._reload, security, manager
            )
        self._reloading: asyncio.Task[None] | None = None
        self._security = security
        self._grpc: GrpcServer | None = None
        self._server = make_http_server(
            context,
            drain_seconds=TERMINATION_SECONDS,
            security=security,
            dialects=DIALECTS if extension is None else extension.dialects(DIALECTS),
            operators=OPERATORS if extension is None else (*OPERATORS, *extension.operators),
        )
        self.task = asyncio.ensure_future(self._server.serve(sockets=[listener]))

    def _reload(self, security: Security, manager: ModelManager | None) -> None:
        before = self._reloading

        async def reload() -> None:
            if before is not None:  # reloads run in order; the last one counts
                await asyncio.wait((before,))
            if manager is None:
                await security.reload()
            else:
                await _reloaded(manager, security)

        self._reloading = asyncio.ensure_future(reload())

    async def serve_grpc(self, limits: Limits, host: str, port: int) -> str:
        """Serve the same application over gRPC as well; a line that says where."""
        from tidemill.server.grpc.serve import GrpcServer

        config, certificates = self._server.config, self._security.certificates
        self._grpc = GrpcServer(config.app, limits, host, port, certificates)  # type: ignore[arg-type]
        await self._grpc.start()
        return f"serving the KServe protocol over gRPC on port {self._grpc.port} of {host}"

    async def hand_over(self) -> None:
        """See `HttpServer.hand_over`."""
        await self._server.hand_over()

    async def stop(self) -> None:
        """Stop listening; answers in flight have `TERMINATION_SECONDS` to be written."""
        self._server.stop()
        if self._grpc is not None:
            await self._grpc.stop(TERMINATION_SECONDS)
        await self.task


async def _reloaded(manager: ModelManager, security: Security) -> None:
    try:
        found = await manager.reload()
    except TidemillError as error:
        log.error("the deployment stays as it was: %s", error.message)
        if security.reloadable:
            await security.reload()
    except Exception:
        log.exception("the deployment stays as it was")
    else:
        log.warning("the deployment was read again: %s", found or "nothing differs")


async def _until_stopped(
    http: _Http, context: ServerContext, signals: _Signals, options: ServeOptions, say: Say
) -> int:
    """Serve, then drain: /readyz fails and new requests are rejected while streams finish."""
    host = context.host
    stopping = asyncio.ensure_future(signals.first.wait())
    # With one model there is nothing to serve without it.
    failed = asyncio.ensure_future(host.ended())
    await asyncio.wait((http.task, failed, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failed.done():
        say(f"stopping: {failed.result()}")
        await http.stop()
        return 1
    drain_timeout = options.drain_timeout
    if context.manager is not None:
        await context.manager.close()
        drain_timeout = context.manager.drain_timeout or drain_timeout
    allowed = drain_timeout + TERMINATION_SECONDS + STOP_SECONDS
    options.manager.tell(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(allowed * 1e6)}")
    if options.manager.listener is not None:
        await http.hand_over()
    host.drain("the server is shutting down and takes no new requests; send it again later")
    say(f"stopping; requests in flight have {drain_timeout:g} s (a second signal ends them)")
    idle = asyncio.ensure_future(host.idle())
    second_signal = asyncio.ensure_future(signals.second.wait())
    await asyncio.wait(
        (idle, second_signal, failed, http.task),
        timeout=drain_timeout,
        return_when=asyncio.FIRST_COMPLETED,
    )
    if not idle.done():
        say("ending the remaining requests")
        await host.close()  # each gets the reason and that a retry may succeed
    idle.cancel()
    second_signal.cancel()
    failed.cancel()
    await http.stop()
    return 0


def _engine_level(level: str) -> str:
    # `say` already prints the progress of the engine's start.
    return "warning" if level == "info" else level
