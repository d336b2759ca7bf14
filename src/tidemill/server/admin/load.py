"""GET /load: how busy the models are, for whoever decides which server gets a request."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.contract.gateway import PROTOCOL
from tidemill.server.access.keys import Role
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import METRICS_READERS, USERS, Endpoint
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import json_response


async def load(context: ServerContext, request: Request) -> Response:
    """`server_load`: choices in flight (vLLM's route of this name has it). `protocol`: of what
    gateways and servers say to each other. Of each loaded model:
    `wait`, seconds until a further request would begin to be computed, as admission predicts it;
    `queued_tokens`; `role` (prefill, decode or both); `slots`, sequences that are computed at once;
    `identity`: engines with equal ones answer alike; `cache_tokens` that the prefix cache holds;
    `engine`, another one when what was cached is gone."""
    loaded = (slot.loaded for slot in context.host.slots)
    models = {
        one.served.name: _of(one.served, one.pid)
        for one in loaded
        if one is not None and one.served.pipeline is None
    }
    found = {"server_load": context.shared.choices.total, "models": models}
    return json_response({"protocol": PROTOCOL, **found})


_STARTED = secrets.token_hex(4)
"""Of this process: ids of engine processes are used again, in containers at once."""


def _of(model: ServedModel, pid: int | None) -> dict[str, Any]:
    admission, info = model.admission, model.info
    return {
        "wait": round(admission.predicted_wait, 4),
        "queued_tokens": admission.waiting_tokens,
        "slots": info.max_num_seqs,
        "role": info.role,
        "identity": info.identity,
        "cache_tokens": info.num_blocks * info.block_size if info.prefix_caching else 0,
        "engine": f"{_STARTED}-{pid}",
    }


ENDPOINTS = (
    # Whoever may send requests may know how long they would wait.
    Endpoint("GET", "/load", load, roles=USERS | METRICS_READERS | {Role.AUDITOR}),
)
