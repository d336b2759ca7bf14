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
from tidemill.server.dialects.ollama.translate import served_name
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.host.served import ServedModel
from tidemill.server.host.slot import Slot, State
from tidemill.server.transport.pieces import json_response
from tidemill.text.fill_middle import fill_marks

API_VERSION = "0.12.11"
"""The version of Ollama whose API this is; clients compare it with what they need."""

_FOR_EVER = "9999-12-31T23:59:59Z"
_MANY = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


async def ollama_version(context: ServerContext, request: Request) -> Response:
    """The version of Ollama's API, and the server's own."""
    return json_response({"version": API_VERSION, "tidemill": context.version})


async def ollama_tags(context: ServerContext, request: Request) -> Response:
    """The models under each of their names. What is not loaded is loaded by its first request."""
    host, models = context.host, []
    host.look()
    for name in host.names:
        slot = host.find(name)
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
    for slot in context.host.slots:
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
    """What a model is and can do. A model whose files were never opened is loaded for it."""
    body = await read_model(schema.OllamaShow, request, context.limits, bare=True)
    slot = context.host.find(served_name(context, body.model))
    if slot.loaded is not None:
        return json_response(_remember(context, slot, slot.loaded.served))
    known = context.kept(_Known).shown.get(slot.name)
    if known is not None:
        return json_response(known)

    async def work(model: ServedModel) -> Response:
        request.state.hold.close()
        return json_response(_remember(context, slot, model))

    return ModelAnswer(context, request, slot.name, work)  # a pipeline is always loaded


class _Known:
    """What is known of models that are not loaded now.

    Attributes:
        shown: answers of /api/show by the models' names.
    """

    def __init__(self, context: ServerContext) -> None:
        self.shown: dict[str, dict[str, Any]] = {}


def _remember(context: ServerContext, slot: Slot, model: ServedModel) -> dict[str, Any]:
    """The answer of /api/show for a loaded model."""
    info, family = model.info, model.info.family or "model"
    of_family: dict[str, Any] = {
        "context_length": info.max_model_len,
        "embedding_length": info.hidden_size,
        "vocab_size": info.vocab_size,
    }
    found: dict[str, Any] = {
        "license": "",
        "modelfile": "\n".join([f"FROM {model.name}", *_parameters(model, "PARAMETER ")]),
        "parameters": "\n".join(_parameters(model)),
        "template": model.template.source or "",
        "details": _details_of(model),
        "model_info": {
            "general.architecture": family,
            "general.basename": model.name,
            **({"general.parameter_count": info.parameters} if info.parameters else {}),
            **{f"{family}.{name}": value for name, value in of_family.items()},
        },
        "capabilities": _capabilities(model),
        "modified_at": timestamp(slot.created),
        **({"system": model.preset.system} if model.preset.system else {}),
    }
    context.kept(_Known).shown[slot.name] = found
    return found


def _capabilities(model: ServedModel) -> list[str]:
    if model.pipeline is not None:
        return ["completion"]
    if not model.info.generates:
        return ["embedding"] if model.info.vectors.head != "score" else []
    tools = model.chat.tool_abilities.tools and model.chat.calls
    return [
        "completion",
        *(["insert"] if fill_marks(model.tokenizer) is not None else []),
        *(["tools"] if tools else []),
        *(["thinking"] if model.chat.thinks else []),
    ]


def _parameters(model: ServedModel, before: str = "") -> list[str]:
    """Sampling values where a request has none, by Ollama's names."""
    values = {**model.defaults, **model.preset.sampling}
    names = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
    return [
        f"{before}{names.get(name, name)} {value}"
        for name, value in values.items()
        if isinstance(value, int | float)
    ]


def _identity(slot: Slot, name: str) -> dict[str, str]:
    # Clients show a digest's first characters; it tells models apart, not their files.
    digest = hashlib.sha256(slot.name.encode()).hexdigest()
    return {"name": name, "model": name, "digest": digest}


def _details(context: ServerContext, slot: Slot) -> dict[str, Any]:
    if slot.loaded is not None:
        return _details_of(slot.loaded.served)
    known = context.kept(_Known).shown.get(slot.name)
    return _NOT_KNOWN if known is None else known["details"]


_NOT_KNOWN: dict[str, Any] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}


def _details_of(model: ServedModel) -> dict[str, Any]:
    info = model.info
    kept = info.dtype if info.quantization == "none" else info.quantization
    short = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    gguf = any(file.path.endswith(".gguf") for file in info.files)
    return {
        **_NOT_KNOWN,
        "format": "gguf" if gguf else "safetensors",
        "family": info.family,
        "families": [info.family] if info.family else [],
        "parameter_size": _rounded(info.parameters) if info.parameters else "",
        "quantization_level": short.get(kept, kept.upper()),
    }


def _rounded(count: int) -> str:
    """A number of parameters as people write it: ``7.6B``, ``494.03M``."""
    unit, letter = next(((u, letter) for u, letter in _MANY if count >= u), (1.0, ""))
    digits = 1 if unit >= 1e9 else 2
    return f"{count / unit:.{digits}f}{letter}" if letter else str(count)


def _file_bytes(slot: Slot) -> int:
    """Bytes of the weights; 0 where they are not known yet."""
    if slot.loaded is not None:
        return slot.loaded.served.info.weight_bytes
    return 0 if slot.need is None else slot.need.least


def _expires_at(left: float | None) -> str:
    """When a model is unloaded, if no request uses it until then; None: it stays."""
    return _FOR_EVER if left is None else timestamp(wall() + left)
