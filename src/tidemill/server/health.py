"""GET /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.wire import EngineStats
from tidemill.metrics.registry import CONTENT_TYPE
from tidemill.server.context import ServerContext
from tidemill.server.openai.models import json_response

ENGINE_TIMEOUT = 5.0
"""Seconds the engine has to answer; a step takes less."""


async def _engine_stats(context: ServerContext) -> EngineStats:
    try:
        async with asyncio.timeout(ENGINE_TIMEOUT):
            return await context.client.stats()
    except TimeoutError:
        raise TidemillError(
            ErrorKind.UNAVAILABLE, f"the engine did not answer within {ENGINE_TIMEOUT:g} s"
        ) from None


async def healthz(context: ServerContext, request: Request) -> Response:
    """The API process answers."""
    return json_response({"status": "ok"})


async def readyz(context: ServerContext, request: Request) -> Response:
    """The engine answers: 200 with what it runs, else 503 with the reason."""
    try:
        stats = await _engine_stats(context)
    except TidemillError as error:
        return json_response({"status": "unavailable", "reason": error.message}, 503)
    return json_response(
        {
            "status": "ready",
            "engine": msgspec.structs.asdict(context.info),
            "stats": msgspec.structs.asdict(stats),
        }
    )


async def metrics(context: ServerContext, request: Request) -> Response:
    """Prometheus exposition; without the engine's answer, its latest figures stand."""
    try:
        context.metrics.update_engine(await _engine_stats(context))
    except TidemillError as error:
        if error.kind is not ErrorKind.UNAVAILABLE:
            raise
    return Response(await asyncio.to_thread(context.metrics.render), media_type=CONTENT_TYPE)
