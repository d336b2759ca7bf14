"""/admin/models: what is loaded, and what administrators change; POST /admin/reload."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import ADMINS, Endpoint
from tidemill.server.dialects.fields import Alias, Fields
from tidemill.server.dialects.keep_alive import KeepAlive, keep_alive_of
from tidemill.server.dialects.members import Body
from tidemill.server.dialects.pulling import PullAnswer
from tidemill.server.host.describe import describe
from tidemill.server.host.manager import ModelManager, no_manager
from tidemill.server.host.slot import Slot
from tidemill.server.transport.framing import NDJSON, SSE
from tidemill.server.transport.pieces import json_response


class ModelBody(Body, kw_only=True):
    """A model by name."""

    model: str


class LoadBody(ModelBody, kw_only=True):
    """Body of POST /admin/models/load.

    Attributes:
        keep_alive: how long it stays loaded without use, from now on.
    """

    keep_alive: KeepAlive = None


class PullBody(Body, kw_only=True):
    """Body of POST /admin/models/pull.

    Attributes:
        source: as of `tidemill pull`.
        name: its name in the library (`as` means the same); default: from the source.
        sha256: digest of the file at an https address.
    """

    known: ClassVar[Fields] = {"as": Alias("name")}

    source: str
    name: str | None = None
    sha256: str | None = None


class CopyBody(Body, kw_only=True):
    """Body of POST /admin/models/copy."""

    source: str
    target: str


async def list_models(context: ServerContext, request: Request) -> Response:
    """The state of every model, and their memory: the budget, and with `?memory=true` the bytes
    that each one's process takes now, pages that several share counting in parts."""
    host = context.host
    host.look()
    slots = host.slots
    found: dict[str, Any] = {"memory_budget": host.budget}
    models = [described(context, slot) for slot in slots]
    if request.query_params.get("memory", "").lower() in ("1", "true", "yes"):
        held = await ModelManager.held(host)
        for model in models:
            if model["name"] in held:
                model["memory_held"] = held[model["name"]]
        found["memory_held"] = sum(held.values())
    return json_response({**found, "models": models})


def described(context: ServerContext, slot: Slot) -> dict[str, Any]:
    """See `describe`; and the seconds until it is unloaded, if it is not used (null: it stays)."""
    found = describe(slot)
    left = context.host.seconds_left(slot)
    found["until"] = None if left is None else round(left, 1)
    return found


async def load_model(context: ServerContext, request: Request) -> Response:
    """Load a model, or wake it; the answer comes when it is loaded."""
    body = await read_model(LoadBody, request, context.limits)
    slot = _named(context, body.model)
    await context.host.load(slot, keep_alive_of(body.keep_alive))
    return json_response(described(context, slot))


async def unload_model(context: ServerContext, request: Request) -> Response:
    """Unload a model; the answer comes when the requests that use it have ended and it is."""
    body = await read_model(ModelBody, request, context.limits)
    slot = _named(context, body.model)
    await context.host.unload(slot)
    return json_response(described(context, slot))


async def sleep_model(context: ServerContext, request: Request) -> Response:
    """Give a model's memory back and keep its process; the next request wakes it. One that is used
    or cannot sleep stays as it is: `state` says so."""
    body = await read_model(ModelBody, request, context.limits)
    slot = _named(context, body.model)
    await context.host.sleep(slot)
    return json_response(described(context, slot))


async def pull_model(context: ServerContext, request: Request) -> Response:
    """Pull a model into the library and serve it. Progress comes as server-sent events, or as lines
    of JSON where `Accept` says application/x-ndjson. A client that leaves ends the pull; the next
    one goes on where it was."""
    body = await read_model(PullBody, request, context.limits)
    lines = "ndjson" in request.headers.get("accept", "")
    return PullAnswer(
        request,
        partial(_manager(context).pull, body.source, body.name, body.sha256),
        NDJSON if lines else SSE,
        lambda name: {"status": "success", "model": name},
    )


async def copy_model(context: ServerContext, request: Request) -> Response:
    """Give a model of the library a second name, and serve it."""
    body = await read_model(CopyBody, request, context.limits)
    return json_response({"model": await _manager(context).copy(body.source, body.target)})


async def delete_model(context: ServerContext, request: Request) -> Response:
    """Remove a model of the library. Requests that it answers go on."""
    name: str = request.path_params["model"]
    return json_response({"model": name, "freed": await _manager(context).remove(name)})


async def reload(context: ServerContext, request: Request) -> Response:
    """Read the deployment file again and apply what differs, without touching the streams of models
    that did not change; keys and certificates, too. All or nothing: the answer says what was
    changed, or every change that needs another start of the server."""
    return json_response(await _manager(context).reload())


def _named(context: ServerContext, name: str) -> Slot:
    if not name:
        raise bad_request("model", "name the model; GET /admin/models lists them")
    return context.host.find(name)


def _manager(context: ServerContext) -> ModelManager:
    if context.manager is None:
        raise no_manager()
    return context.manager


_STREAMS = ("text/event-stream", "application/x-ndjson")

ENDPOINTS = (
    Endpoint("GET", "/admin/models", list_models, roles=ADMINS),
    Endpoint("POST", "/admin/models/load", load_model, LoadBody, ADMINS),
    Endpoint("POST", "/admin/models/unload", unload_model, ModelBody, ADMINS),
    Endpoint("POST", "/admin/models/sleep", sleep_model, ModelBody, ADMINS),
    Endpoint("POST", "/admin/models/pull", pull_model, PullBody, ADMINS, _STREAMS),
    Endpoint("POST", "/admin/models/copy", copy_model, CopyBody, ADMINS),
    Endpoint("DELETE", "/admin/models/{model:path}", delete_model, roles=ADMINS),
    Endpoint("POST", "/admin/reload", reload, roles=ADMINS),
)
