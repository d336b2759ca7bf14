"""/admin/models: what is loaded, and what administrators change; POST /admin/reload."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.server.access.keys import Role
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.fields import Alias, Fields
from tidemill.server.dialects.keep_alive import KeepAlive, keep_alive_of
from tidemill.server.dialects.members import Body
from tidemill.server.errors import fail, problem_response
from tidemill.server.host.describe import describe
from tidemill.server.host.manager import ModelManager, no_manager
from tidemill.server.host.slot import Slot
from tidemill.server.transport.framing import NDJSON, SSE, Framing
from tidemill.server.transport.pieces import json_response
from tidemill.server.transport.sink import AsgiSink
from tidemill.server.transport.stream import Stream, while_connected

ADMINS = frozenset({Role.ADMIN})

PROGRESS_SECONDS = 0.1
"""Between two events about the bytes of one stage."""


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
    return _Pull(_manager(context), request, body, NDJSON if lines else SSE)


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


class _Pull(Response):
    """The events of one pull."""

    def __init__(
        self, manager: ModelManager, request: Request, body: PullBody, framing: Framing
    ) -> None:
        super().__init__()
        self._manager = manager
        self._request = request
        self._body = body
        self._framing = framing
        self._told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._last = ("", 0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; a disconnect of the client ends the pull."""

        async def serve() -> None:
            stream = Stream(AsgiSink(send), self._framing, lambda: b"")
            try:
                try:
                    await self._write(stream)
                finally:
                    await stream.aclose()
            except Exception as error:
                problem = fail(self._request, error)
                error_body = self._request.state.error_body
                if stream.started:
                    part = self._framing.part(error_body(problem))
                    await stream.write(part, more=False)
                else:
                    response = problem_response(problem, error_body)
                    await response(scope, receive, send)

        await while_connected(receive, serve())

    async def _write(self, stream: Stream) -> None:
        body = self._body
        work = self._manager.pull(body.source, body.name, body.sha256, self._tell)
        pulling = asyncio.ensure_future(work)
        pulling.add_done_callback(lambda _: self._told.put_nowait(None))
        try:
            while (event := await self._told.get()) is not None:
                await stream.write(stream.begin() + self._part(event))
            name = await pulling
        finally:
            pulling.cancel()
            await asyncio.gather(pulling, return_exceptions=True)
        done = self._part({"status": "success", "model": name})
        await stream.write(stream.begin() + done, more=False)

    def _part(self, event: dict[str, Any]) -> bytes:
        return self._framing.part(msgspec.json.encode(event))

    def _tell(self, stage: str, done: int, total: int, message: str | None) -> None:
        # In the thread of the pull.
        if message is None and stage in ("resolving", "complete"):
            return  # an error while the source is looked up has a status of its own
        now = monotonic()
        last, at = self._last
        if message is None and stage == last and now < at + PROGRESS_SECONDS and done < total:
            return
        self._last = stage, now
        event: dict[str, Any] = {"status": stage}
        if total:
            event |= {"completed": done, "total": total}
        if message is not None:
            event["message"] = message
        self._loop.call_soon_threadsafe(self._told.put_nowait, event)


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
