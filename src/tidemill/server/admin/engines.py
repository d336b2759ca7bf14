"""/admin/engines: which engines compute, and moving an engine's requests to another server's."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import ADMINS, Endpoint
from tidemill.server.dialects.members import Body
from tidemill.server.errors import reject
from tidemill.server.host.slot import Loaded, Slot
from tidemill.server.transport.pieces import json_response


class EngineBody(Body, kw_only=True):
    """Body of POST /admin/engines/restore.

    Attributes:
        model: whose engine; default: the default model's.
    """

    model: str | None = None


class DrainBody(EngineBody, kw_only=True):
    """Body of POST /admin/engines/drain.

    Attributes:
        to: HOST:PORT where another server's engine of the same model listens (its `kv_listen`).
            Without it gateways go on elsewhere with their streams, and new requests are refused.
    """

    to: str | None = None


async def engines(context: ServerContext, request: Request) -> Response:
    """The engines of the loaded models: `model`, `pid`, `role` (prefill, decode, both), `requests`
    that they compute or wait for, `away`, where another engine computes them: its address and how
    many, and `leaving`, whether it is being drained without another engine."""
    loaded = [(slot, slot.loaded) for slot in context.host.slots if slot.loaded is not None]
    return json_response({"engines": [_described(slot, one) for slot, one in loaded]})


async def drain(context: ServerContext, request: Request) -> Response:
    """Move the requests of a model's engine to another server's engine, the running ones from
    their next token on, and let new ones go there; the answer comes when that is done. This server
    goes on to answer its clients. Without `to`, a gateway's streams end so that it goes on with
    them at another server, others' end as they would, and new requests are refused (503). See
    docs/kv-transfer.md."""
    body = await read_model(DrainBody, request, context.limits)
    slot, loaded = _loaded(context, body.model)
    if body.to is None:
        loaded.served.admission.leaving = True
        return json_response(_described(slot, loaded))
    moved = await loaded.leave(body.to)
    return json_response({**_described(slot, loaded), "moved": moved})


async def restore(context: ServerContext, request: Request) -> Response:
    """Undo `drain`: running requests come back, and new ones stay."""
    body = await read_model(EngineBody, request, context.limits)
    slot, loaded = _loaded(context, body.model)
    loaded.served.admission.leaving = False
    moved = await loaded.bring_back()
    return json_response({**_described(slot, loaded), "moved": moved})


def _loaded(context: ServerContext, model: str | None) -> tuple[Slot, Loaded]:
    slot = context.host.find(model)
    if slot.loaded is None:
        raise reject(
            409, f"the model {slot.name!r} is not loaded: it has no engine", code="model_not_loaded"
        )
    return slot, slot.loaded


def _described(slot: Slot, loaded: Loaded) -> dict[str, Any]:
    away = loaded.away
    return {
        "model": slot.name,
        "pid": loaded.pid,
        "role": loaded.served.info.role,
        "requests": slot.leases,
        "leaving": loaded.served.admission.leaving,
        "away": None if away is None else {"at": away[0], "requests": away[1]},
    }


ENDPOINTS = (
    Endpoint("GET", "/admin/engines", engines, roles=ADMINS),
    Endpoint("POST", "/admin/engines/drain", drain, DrainBody, ADMINS),
    Endpoint("POST", "/admin/engines/restore", restore, EngineBody, ADMINS),
)
