"""GET /info, in TGI's shape for a model that generates and in TEI's for one that does not."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.contract.sampling import MAX_CHOICES, MAX_STOP_STRINGS
from tidemill.server.context import ServerContext
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import json_response


async def info(context: ServerContext, request: Request) -> Response:
    """The default model and its limits."""

    async def work(model: ServedModel) -> Response:
        request.state.hold.close()
        own = _generating(model) if model.info.generates else _pooling(context, model)
        common = {
            "model_id": model.name,
            "model_sha": None,
            "model_dtype": model.info.dtype,
            "max_concurrent_requests": context.limits.max_active_choices,
            "version": context.version,
            "sha": None,
            "docker_label": None,
        }
        return json_response({**common, **own})

    return ModelAnswer(context, request, None, work)


def _generating(model: ServedModel) -> dict[str, Any]:
    size = model.info.max_model_len
    return {
        "model_pipeline_tag": "text-generation",
        "model_device_type": model.info.device,
        "max_best_of": MAX_CHOICES,
        "max_stop_sequences": MAX_STOP_STRINGS,
        "max_input_tokens": size - 1,
        "max_total_tokens": size,
        "validation_workers": 1,
        "max_client_batch_size": 1,
        "router": "tidemill",
    }


def _pooling(context: ServerContext, model: ServedModel) -> dict[str, Any]:
    data = model.info.vectors
    if data.head == "score":
        kind: dict[str, Any] = {"reranker": {"id2label": {"0": "0"}, "label2id": {"0": 0}}}
    else:
        kind = {"embedding": {"pooling": str(data.pooling)}}
    return {
        "model_type": kind,
        "max_input_length": model.info.max_model_len,
        "max_batch_tokens": model.info.max_step_tokens,
        "max_client_batch_size": context.limits.max_inputs,
        "auto_truncate": False,
        "tokenization_workers": 1,
    }
