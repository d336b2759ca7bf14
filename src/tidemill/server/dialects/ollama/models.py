"""GET /api/tags, /api/ps, /api/version and POST /api/show."""

from __future__ import annotations

import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import wall
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.ollama import schema
from tidemill.server.dialects.ollama.answer_format import timestamp
from tidemill.server.dialects.ollama.shown import NOT_KNOWN, Facts, details_of, shown_model
from tidemill.server.dialects.ollama.translate import served_name
from tidemill.server.dialects.permitted import find_model, model_slots, named_models
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.host.served import ServedModel
from tidemill.server.host.slot import Loader, Slot, State
from tidemill.server.transport.pieces import json_response

API_VERSION = "0.12.11"
"""The version of Ollama whose API this is; clients compare it with what they need."""

_FOR_EVER = "9999-12-31T23:59:59Z"


async def ollama_version(context: ServerContext, request: Request) -> Response:
    """The version of Ollama's API, and the server's own."""
    return json_response({"version": API_VERSION, "tidemill": context.version})


async def ollama_tags(context: ServerContext, request: Request) -> Response:
    """The models under each of their names. What is not loaded is loaded by its first request."""
    models = []
    context.host.look()
    for name, slot in named_models(context, request):
        models.append(
            {
                **_identity(slot, name),
                "modified_at": timestamp(slot.created),
                "size": _file_bytes(slot),
                "details": _details(context, slot),
            }
        )
    return json_response({"models": models})


async def ollama_ps(context: ServerContext, request: Request) -> Response:
    """The models that are loaded."""
    found = []
    for slot in model_slots(context, request):
        if slot.state is not State.LOADED or slot.loaded is None:
            continue
        info = slot.loaded.served.info
        size = info.weight_bytes + info.kv_bytes
        found.append(
            {
                **_identity(slot, slot.name),
                "size": size,
                "size_vram": 0 if info.device == "cpu" else size,
                "context_length": info.max_model_len,
                "details": _details(context, slot),
                "expires_at": _expires_at(context.host.seconds_left(slot)),
            }
        )
    return json_response({"models": found})


async def ollama_show(context: ServerContext, request: Request) -> Response:
    """What a model is and can do. One that is not loaded is described from its files, without its
    weights; a pipeline is loaded for it."""
    body = await read_model(schema.OllamaShow, request, context.limits, bare=True)
    slot = find_model(context, request, served_name(context, body.model))
    if slot.loaded is not None:
        return json_response(_remember(context, slot, Facts.of_loaded(slot.loaded.served)))
    known = _known(context, slot)
    if known is not None:
        return json_response(known)
    described = await slot.loader.describe()
    if described is not None:
        return json_response(_remember(context, slot, Facts.of_files(slot.name, described)))

    async def work(model: ServedModel) -> Response:
        request.state.hold.close()
        return json_response(_remember(context, slot, Facts.of_loaded(model)))

    return ModelAnswer(context, request, slot.name, work)


class _Known:
    """What is known of models that are not loaded now.

    Attributes:
        shown: models' names -> the loader by which it was found out (another one stands for other
            files), and the answer of /api/show.
    """

    def __init__(self, context: ServerContext) -> None:
        self.shown: dict[str, tuple[Loader, dict[str, Any]]] = {}


def _known(context: ServerContext, slot: Slot) -> dict[str, Any] | None:
    loader, shown = context.kept(_Known).shown.get(slot.name, (None, None))
    return shown if loader is slot.loader else None


def _remember(context: ServerContext, slot: Slot, facts: Facts) -> dict[str, Any]:
    """The answer of /api/show."""
    shown = {**shown_model(facts), "modified_at": timestamp(slot.created)}
    context.kept(_Known).shown[slot.name] = slot.loader, shown
    return shown


def _identity(slot: Slot, name: str) -> dict[str, str]:
    # Clients show a digest's first characters; it tells models apart, not their files.
    digest = hashlib.sha256(slot.name.encode()).hexdigest()
    return {"name": name, "model": name, "digest": digest}


def _details(context: ServerContext, slot: Slot) -> dict[str, Any]:
    if slot.loaded is not None:
        return details_of(Facts.of_loaded(slot.loaded.served))
    known = _known(context, slot)
    return NOT_KNOWN if known is None else known["details"]


def _file_bytes(slot: Slot) -> int:
    """Bytes of the weights; 0 where they are not known yet."""
    if slot.loaded is not None:
        return slot.loaded.served.info.weight_bytes
    return 0 if slot.need is None else slot.need.least


def _expires_at(left: float | None) -> str:
    """When a model is unloaded, if no request uses it until then; None: it stays."""
    return _FOR_EVER if left is None else timestamp(wall() + left)
