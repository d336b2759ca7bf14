"""GET and POST /lora-adapters."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.server.context import ServerContext
from tidemill.server.dialects.adapters import LoraScale, asked_adapters
from tidemill.server.dialects.body import read_body
from tidemill.server.dialects.permitted import find_model
from tidemill.server.host.slot import Slot
from tidemill.server.transport.pieces import json_response


async def llama_adapters(context: ServerContext, request: Request) -> Response:
    """The adapters of a model: their numbers, names, and the scales with which they are applied to
    requests that name none."""
    return json_response(_listed(find_model(context, request, request.query_params.get("model"))))


async def llama_set_adapters(context: ServerContext, request: Request) -> Response:
    """Set the scales of a model's adapters for requests that name none; the adapters that are left
    out get 0."""
    slot = find_model(context, request, request.query_params.get("model"))
    body = await read_body(request, context.limits, bare=True)
    try:
        given = msgspec.json.decode(body, type=list[LoraScale])
    except msgspec.DecodeError as error:
        raise bad_request(
            "lora", f"expected a list of objects with id and scale: {error}"
        ) from None
    adapters = slot.adapters
    scales = adapters.named(asked_adapters(given) or {})
    async with context.host.lease(slot.name) as model:
        await adapters.uses(model.client, scales)  # raises for what cannot be applied
    adapters.scales = {name: scale for name, scale in scales.items() if scale}
    return json_response(_listed(slot))


def _listed(slot: Slot) -> list[dict[str, Any]]:
    adapters = slot.adapters
    return [
        {"id": adapters.id_of(name), "path": name, "scale": adapters.scales.get(name, 0.0)}
        for name in adapters
    ]
