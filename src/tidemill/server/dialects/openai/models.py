"""GET /v1/models."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.context import ServerContext
from tidemill.server.dialects.permitted import find_model, named_models
from tidemill.server.host.served import ServedModel
from tidemill.server.host.slot import Slot, State
from tidemill.server.transport.pieces import json_response


def _card(context: ServerContext, slot: Slot, name: str) -> dict[str, Any]:
    adapter = context.host.adapter(name) is not None
    found: dict[str, Any] = {
        "id": name,
        **({"parent": slot.name, "root": slot.name} if adapter else {}),
        "object": "model",
        "created": slot.created,
        "owned_by": "tidemill",
        "loaded": slot.loaded is not None,
        "state": slot.state.value,
    }
    if slot.progress is not None and slot.progress.total and slot.state is State.LOADING:
        found["progress"] = round(slot.progress.loaded / slot.progress.total, 4)
    if slot.loaded is None:
        return found
    model = slot.loaded.served
    if model.pipeline is not None:
        return {**found, "backend": "pipeline", "tasks": ["generate"]}
    info = model.info
    return {
        **found,
        "max_model_len": info.max_model_len,
        "has_chat_template": model.template.exists,
        "defaults": dict(model.defaults),
        "backend": info.backend,
        "device": info.device,
        "dtype": info.dtype,
        "quantization": info.quantization,
        "kv_dtype": info.kv_dtype,
        "tasks": list(_tasks(model)),
        "embedding_size": info.hidden_size if info.vectors.head != "score" else None,
    }


def _tasks(model: ServedModel) -> tuple[str, ...]:
    """Tasks of the model: `generate`, `embed`, `score`."""
    info = model.info
    generates = ("generate",) if info.generates else ()
    return (*generates, *(("score",) if info.vectors.head == "score" else ("embed", "score")))


async def list_models(context: ServerContext, request: Request) -> Response:
    """The models under each of their names. What is not loaded is loaded by its first request."""
    context.host.look()
    cards = [_card(context, slot, name) for name, slot in named_models(context, request)]
    # Codex reads `models`, metadata of models that it knows, and fails where it is absent.
    return json_response({"object": "list", "data": cards, "models": []})


async def get_model(context: ServerContext, request: Request) -> Response:
    """A model by name; names may contain slashes."""
    name: str = request.path_params["model"]
    return json_response(_card(context, find_model(context, request, name), name))
