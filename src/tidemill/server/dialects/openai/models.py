"""GET /v1/models."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.context import ServerContext
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import json_response


def _card(model: ServedModel, name: str) -> dict[str, Any]:
    info = model.info
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "tidemill",
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
    """The served models under each of their names."""
    cards = [_card(model, name) for model in context.host.models for name in model.names]
    return json_response({"object": "list", "data": cards})


async def get_model(context: ServerContext, request: Request) -> Response:
    """A served model by name; names may contain slashes."""
    name: str = request.path_params["model"]
    return json_response(_card(context.host.find(name), name))
