"""`tidemill gateway`: a server whose models are at other servers."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.build import build_id
from tidemill.base.errors import TidemillError
from tidemill.base.heap import use_few_arenas
from tidemill.base.log import get_logger
from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults
from tidemill.gateway.config import GatewayConfig, read
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.probe import Probes
from tidemill.gateway.routes import Gateway
from tidemill.gateway.shared import share
from tidemill.server.access.limits import Limits
from tidemill.server.access.security import Security
from tidemill.server.app import DIALECTS, make_http_server
from tidemill.server.context import ServerContext
from tidemill.server.transport.http import HttpServer
from tidemill.server.transport.listen import url_of

if TYPE_CHECKING:
    from tidemill.server.quotas.service import QuotaService
    from tidemill.store.location import Location
    from tidemill.telemetry.otel_options import OtelOptions

log = get_logger(__name__)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Settings of `gateway`.

    Attributes:
        config: what its file says.
        file: that is read again at SIGHUP; None: there is none.
        limits: bounds of the API.
        security: keys, certificates, origins.
        drain_timeout: seconds for requests in flight after a signal.
        database: where keys, limits, usage and audit are kept; None: nowhere.
        shared: other gateways have the database, too: see `gateway.shared`.
        database_outage: seconds for which limits are spent while the database does not answer.
        home: ``TIDEMILL_HOME``.
        prices: of models.
        quotas: limits of each level.
        otel: where OpenTelemetry's spans and metrics go; None: nowhere.
        recent_requests: that can be explained; 0: none.
    """

    config: GatewayConfig
    limits: Limits = field(default_factory=Limits)
    security: Security = field(default_factory=Security)
    drain_timeout: float = 30.0
    database: Location | None = None
    shared: bool = False
    database_outage: float = 3600.0
    home: Path | None = None
    prices: Prices = field(default_factory=Prices)
    quotas: Defaults = field(default_factory=Defaults)
    otel: OtelOptions | None = None
    recent_requests: int = 512
    file: Path | None = None


def serve(options: GatewayOptions, listener: socket.socket, *, say: Say = lambda line: None) -> int:
    """Serve until SIGTERM or SIGINT. SIGHUP reads the file, keys and certificates again.

    Args:
        options: what to run.
        listener: from `listen.bind`.
        say: called with each line of progress.

    Returns:
        The exit code.
    """
    import uvloop

    use_few_arenas()
    return uvloop.run(_run(options, listener, say))


async def _run(options: GatewayOptions, listener: socket.socket, say: Say) -> int:
    context, quotas = make_context(options)
    fleet = Fleet(options.config)
    http = make_gateway(context, fleet, options.security, drain_seconds=options.drain_timeout)
    probes = Probes(fleet)
    probes.start()
    shared = share(fleet, context) if options.shared else None
    stopping = asyncio.Event()

    def stop() -> None:
        http.force_exit = stopping.is_set()  # a second signal waits for nothing
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    reloads = set[asyncio.Task[None]]()

    def reload() -> None:
        task = asyncio.ensure_future(_reload(options, fleet, probes))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, reload)
    serving = asyncio.ensure_future(http.serve(sockets=[listener]))
    url = url_of(listener, tls=options.security.certificates is not None)
    names = ", ".join(target.name for target in fleet.targets)
    say(f"serving {len(fleet.targets)} targets ({names}) on {url}")
    quotas.start()
    if options.security.stored is not None and context.storage is not None:
        options.security.stored.follow(context.storage)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((stopped, serving), return_when=asyncio.FIRST_COMPLETED)
        say(f"stopping; requests in flight have {options.drain_timeout:g} s")
        context.host.drain("the gateway is shutting down; send the request again later")
        http.stop()
        await serving
    finally:
        stopped.cancel()
        await probes.close()
        if shared is not None:
            await shared.close()
        await context.close()
    return 0


async def _reload(options: GatewayOptions, fleet: Fleet, probes: Probes) -> None:
    """Read the file, keys and certificates again. Where the file is not valid, which the log says,
    the targets stay as they are."""
    if options.security.reloadable:
        await options.security.reload()
    if options.file is None:
        return
    try:
        config = await asyncio.to_thread(read, options.file)
    except TidemillError as error:
        log.error("nothing of %s is applied: %s", options.file, error.message)
        return
    before = list(fleet.targets)
    gone = fleet.reload(config)
    probes.start()
    added = [target.name for target in fleet.targets if target not in before]
    log.warning(
        "%s is applied: %d targets; new or changed: %s; gone or changed: %s",
        options.file,
        len(fleet.targets),
        ", ".join(added) or "none",
        ", ".join(target.name for target in gone) or "none",
    )
    await probes.leave(gone)


def make_gateway(
    context: ServerContext, fleet: Fleet, security: Security, *, drain_seconds: float
) -> HttpServer:
    """The HTTP server of a gateway.

    Args:
        context: without models of its own.
        fleet: the targets.
        security: as of a server; where keys' requests may be served is up to the targets' tags.
        drain_seconds: for requests in flight after `stop`.
    """
    gateway = Gateway(fleet, context)
    return make_http_server(
        context,
        drain_seconds=round(drain_seconds),
        security=replace(security, region=None),
        dialects=gateway.dialects(DIALECTS),
        operators=gateway.operators(),
    )


def make_context(options: GatewayOptions) -> tuple[ServerContext, QuotaService]:
    """The server's state, and its limits, which are to be started."""
    context = ServerContext(
        limits=options.limits,
        build=build_id(),
        keys=options.security.keys,
        home=options.home,
        page=False,
    )
    if options.database is not None:
        context.open_database(options.database)
        if options.home is not None:
            from tidemill.server.records import keep_records

            keep_records(context, options.home, options.prices)
    if options.otel is not None or options.recent_requests:
        context.keep_recent(options.recent_requests, options.prices)  # spans are made of it as well
    if options.otel is not None:
        from tidemill.server.tracing import export

        scheme = "http" if options.security.certificates is None else "https"
        export(context, options.otel, scheme)
    return context, context.limit(options.quotas, options.prices, options.database_outage)
