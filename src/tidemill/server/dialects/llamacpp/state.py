"""GET /props and /slots: what editors and tools read of a llama.cpp server."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import TidemillError
from tidemill.contract.sampling import NEUTRAL
from tidemill.contract.wire import EngineStats
from tidemill.server.context import ServerContext
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.errors import reject
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import json_response

STATS_SECONDS = 1.0
"""The engine's latest numbers are taken where it does not answer within this time."""


async def llama_props(context: ServerContext, request: Request) -> Response:
    """Settings of a model: its context, slots, template and defaults."""

    async def work(model: ServedModel) -> Response:
        info, tokenizer = model.info, model.tokenizer
        return json_response(
            {
                "default_generation_settings": {
                    "id": 0,
                    "n_ctx": info.max_model_len,
                    "is_processing": False,
                    "params": _params(model),
                },
                "total_slots": info.max_num_seqs,
                "model_alias": model.name,
                "model_path": model.name,
                "chat_template": model.template.source or "",
                "bos_token": tokenizer.special.get("bos_token", ""),
                "eos_token": tokenizer.special.get("eos_token", ""),
                "modalities": {"vision": False, "audio": False},
                "build_info": f"tidemill {context.version}",
            }
        )

    return ModelAnswer(context, request, request.query_params.get("model"), work)


def _params(model: ServedModel) -> dict[str, Any]:
    values = {**NEUTRAL, **model.defaults, **model.preset.sampling}
    repeat = values.pop("repetition_penalty")
    kept = {name: value for name, value in values.items() if isinstance(value, int | float)}
    return {"n_predict": -1, "seed": -1, "repeat_last_n": -1, "repeat_penalty": repeat, **kept}


async def llama_slots(context: ServerContext, request: Request) -> Response:
    """One entry for each sequence that can run at a time; those in use come first. With
    `?fail_on_no_slot=1` a 503 where all are in use."""

    async def work(model: ServedModel) -> Response:
        info, running = model.info, (await _stats(model)).running
        if running >= info.max_num_seqs and request.query_params.get("fail_on_no_slot"):
            raise reject(503, "no slot is free", headers={"Retry-After": "1"})
        slots = [
            {"id": i, "n_ctx": info.max_model_len, "is_processing": i < running}
            for i in range(info.max_num_seqs)
        ]
        return json_response(slots)

    return ModelAnswer(context, request, request.query_params.get("model"), work)


async def _stats(model: ServedModel) -> EngineStats:
    try:
        async with asyncio.timeout(STATS_SECONDS):
            return await model.client.stats()
    except (TidemillError, TimeoutError):
        return model.client.last_stats
