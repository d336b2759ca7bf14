"""GET /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger
from tidemill.contract.wire import EngineInfo, EngineStats
from tidemill.server.access.auth import principal_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import METRICS_READERS, PUBLIC, Endpoint
from tidemill.server.host.describe import describe
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import json_response

ENGINE_TIMEOUT = 5.0
"""Seconds the engine has to answer."""

PROBE_TIMEOUT = 1.0
"""Seconds the engine has to answer a probe, which does not wait for a long step."""

log = get_logger(__name__)


async def _engine_stats(model: ServedModel) -> EngineStats:
    try:
        async with asyncio.timeout(ENGINE_TIMEOUT):
            return await model.client.stats()
    except TimeoutError:
        raise TidemillError(
            ErrorKind.UNAVAILABLE, f"the engine did not answer within {ENGINE_TIMEOUT:g} s"
        ) from None


async def about(context: ServerContext, request: Request) -> Response:
    """Name, version and model of this server."""
    return json_response(
        {
            "server": "tidemill",
            "version": context.version,
            "model": context.host.default.name,
            "models": len(context.host.slots),
            "routes": "/openapi.json",
        }
    )


async def version(context: ServerContext, request: Request) -> Response:
    """The server's version."""
    return json_response({"version": context.version})


async def healthz(context: ServerContext, request: Request) -> Response:
    """The API process is alive. The state of the engine is at /readyz."""
    return json_response({"status": "ok"})


async def readyz(context: ServerContext, request: Request) -> Response:
    """Readiness: 200 with the first model's engine settings and the state of every model; else 503
    with the reason (recovering from a crash or a stall, draining). A server of several models is
    ready as long as one of them answers. While the first model loads there is no answer at all.

    A long step does not make the server unready: progress is monitored, not response time.
    """
    host = context.host
    models = host.models
    stats = [await _probed(model) for model in models]
    problems = [model.client.problem for model in models]
    problem = host.draining or (problems[0] if problems and all(problems) else None)
    if principal_of(request).role is None:
        # A probe without a key, where keys exist: only whether the server is ready.
        status = "ready" if problem is None else "unavailable"
        return json_response({"status": status}, 200 if problem is None else 503)
    if problem is not None:
        return json_response({"status": "unavailable", "reason": problem}, 503)
    found: dict[str, object] = {"status": "ready"}
    if models:
        found |= {"engine": _engine(models[0].info), "stats": msgspec.structs.asdict(stats[0])}
    return json_response({**found, "models": [describe(slot) for slot in host.slots]})


async def _probed(model: ServedModel) -> EngineStats:
    """A model's statistics: the latest ones where its engine is busy."""
    client = model.client
    if client.problem is None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                return await client.stats()
        except (TidemillError, TimeoutError):
            log.debug("the engine is busy; the latest statistics are returned")
    return client.last_stats


def _engine(info: EngineInfo) -> dict[str, object]:
    """The engine's settings, without the paths of its files."""
    return {k: v for k, v in msgspec.structs.asdict(info).items() if k != "files"}


async def metrics(context: ServerContext, request: Request) -> Response:
    """Prometheus exposition, or OpenMetrics where that is accepted; of an engine that does not
    answer, its latest statistics."""

    async def update(model: ServedModel) -> None:
        try:
            model.metrics.update_engine(await _engine_stats(model))
        except TidemillError as error:
            if error.kind is not ErrorKind.UNAVAILABLE:
                raise

    await asyncio.gather(*map(update, context.host.models))
    if context.host.versions is not None:
        context.host.versions.refresh()
    accept = request.headers.get("accept", "")
    text, content_type = await asyncio.to_thread(context.metrics.render, accept)
    return Response(text, headers={"content-type": content_type})


ENDPOINTS = (
    Endpoint("GET", "/", about),
    Endpoint("GET", "/v1", about),
    Endpoint("GET", "/version", version),
    Endpoint("GET", "/healthz", healthz, roles=PUBLIC),
    Endpoint("GET", "/readyz", readyz, roles=PUBLIC),
    # Other servers' names for readiness.
    Endpoint("GET", "/health", readyz, roles=PUBLIC),
    Endpoint("GET", "/ping", readyz, roles=PUBLIC),
    Endpoint("GET", "/metrics", metrics, roles=METRICS_READERS),
)
