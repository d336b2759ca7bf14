"""POST /admin/profile: where the time of a running model's engine goes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.contract.profile import MAX_PROFILE_SECONDS
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import ADMINS, Endpoint
from tidemill.server.dialects.members import Body
from tidemill.server.errors import reject
from tidemill.server.host.slot import Loaded
from tidemill.server.transport.pieces import json_response
from tidemill.server.transport.stream import while_connected

MAX_TRACE_EVENTS = 40_000
"""About 4 MB of JSON."""

CLIENT_LEFT = 499


class ProfileBody(Body, kw_only=True):
    """Body of POST /admin/profile.

    Attributes:
        model: whose engine; default: the default model's.
        seconds: how long it is watched, at most 300.
        trace: also return `trace`, which Perfetto opens.
        roofline: measure what the machine can do first, if that is not known (0.5 s).
    """

    model: str | None = None
    seconds: float = 10.0
    trace: bool = False
    roofline: bool = True


async def take_profile(context: ServerContext, request: Request) -> Response:
    """Where the time of a model's engine goes in the next seconds, by parts of its steps and by
    kernels; the answer comes when they are over. One profile of a model at a time; it ends when the
    client leaves. docs/observability.md describes the members."""
    body = await read_model(ProfileBody, request, context.limits)
    if not 0 < body.seconds <= MAX_PROFILE_SECONDS:
        raise bad_request("seconds", f"seconds is more than 0 and at most {MAX_PROFILE_SECONDS:g}")
    slot = context.host.find(body.model)
    if (loaded := slot.loaded) is None:
        raise reject(
            409,
            f"the model {slot.name!r} is not loaded: send it requests, or load it first "
            "(POST /admin/models/load)",
            code="model_not_loaded",
        )
    found: dict[str, Any] = {}

    async def take() -> None:
        found.update(await _taken(slot.name, loaded, body))

    await while_connected(request.receive, take())
    return json_response(found) if found else Response(status_code=CLIENT_LEFT)


async def _taken(name: str, loaded: Loaded, body: ProfileBody) -> dict[str, Any]:
    from tidemill.telemetry import profile as views

    cpu = time.process_time()
    events = MAX_TRACE_EVENTS if body.trace else 0
    profile = await loaded.profile(body.seconds, events=events, rates=body.roofline)
    cpu = time.process_time() - cpu
    info = loaded.served.client.info
    engine = views.Engine(name, info.backend, info.isa, info.threads)
    found = views.document(engine, profile, cpu)
    if body.trace:
        counters = profile.counters
        found["trace"] = (
            None
            if counters is None
            else await asyncio.to_thread(views.chrome_trace, engine, counters)
        )
    return found


ENDPOINTS = (Endpoint("POST", "/admin/profile", take_profile, ProfileBody, ADMINS),)
