"""Message batches: created, listed, read, cancelled and removed; their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidemill.server.access.auth import principal_of
from tidemill.server.batches.anthropic import schema
from tidemill.server.batches.open import batch_service
from tidemill.server.batches.owners import described
from tidemill.server.batches.service import BatchService, new_batch
from tidemill.server.context import ServerContext
from tidemill.server.dialects.query import check_query, number
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response
from tidemill.store import batches
from tidemill.store.batches import Batch, Line, Outcome, Result, State

DIALECT = "anthropic"
_COUNTED = {
    "processing": Outcome.OPEN,
    "succeeded": Outcome.SUCCEEDED,
    "errored": Outcome.FAILED,
    "canceled": Outcome.CANCELLED,
    "expired": Outcome.EXPIRED,
}
_ENDED = (State.COMPLETED, State.CANCELLED, State.EXPIRED, State.FAILED)


def _time(seconds: int | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _document(service: BatchService, request: Request, batch: Batch) -> dict[str, Any]:
    counts = await service.counts(batch.id)
    ended = next((batch.times[s.value] for s in _ENDED if s.value in batch.times), None)
    status = "in_progress" if ended is None else "ended"
    if batch.status is State.CANCELLING:
        status = "canceling"
    place = f"/v1/messages/batches/{batch.id}/results"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {name: counts[outcome] for name, outcome in _COUNTED.items()},
        "created_at": _time(batch.created),
        "expires_at": _time(batch.expires),
        "ended_at": _time(ended),
        "archived_at": None,
        "cancel_initiated_at": _time(batch.times.get(State.CANCELLING.value)),
        "results_url": str(request.base_url).rstrip("/") + place if ended else None,
    }


async def _found(service: BatchService, request: Request) -> Batch:
    identity: str = request.path_params["batch_id"]
    batch = await service.find(principal_of(request).client_id, identity)
    if batch is None or batch.dialect != DIALECT:
        raise reject(404, f"there is no message batch {identity[:80]!r}")
    return batch


def _lines(body: schema.MessageBatchRequest) -> list[Line]:
    return [
        Line(i, one.custom_id, msgspec.json.encode(one.params))
        for i, one in enumerate(body.requests)
    ]


async def create(
    context: ServerContext, request: Request, body: schema.MessageBatchRequest
) -> Response:
    """See `dialects.anthropic.batches.create_batch`."""
    service = await batch_service(context)
    principal = principal_of(request)
    lines = await asyncio.to_thread(_lines, body)
    batch = new_batch(
        DIALECT,
        "/v1/messages",
        principal.client_id,
        described(principal),
        service.now,
        total=len(lines),
        prefix="msgbatch",
    )
    await service.create(batch, lines)
    return json_response(await _document(service, request, batch))


async def listed(context: ServerContext, request: Request) -> Response:
    """See `dialects.anthropic.batches.list_batches`."""
    check_query(request, frozenset({"after_id", "before_id", "limit", "beta"}))
    limit = number(request, "limit", 1, 1000) or 20
    service = await batch_service(context)
    backwards = "before_id" in request.query_params
    found = await service.database.read(
        partial(
            batches.listed,
            owner=principal_of(request).client_id,
            dialect=DIALECT,
            after=request.query_params.get("after_id"),
            before=request.query_params.get("before_id"),
            limit=limit + 1,
        )
    )
    shown = found[-limit:] if backwards else found[:limit]
    return json_response(
        {
            "data": [await _document(service, request, batch) for batch in shown],
            "first_id": shown[0].id if shown else None,
            "last_id": shown[-1].id if shown else None,
            "has_more": len(found) > limit,
        }
    )


async def get(context: ServerContext, request: Request) -> Response:
    """See `dialects.anthropic.batches.get_batch`."""
    service = await batch_service(context)
    return json_response(await _document(service, request, await _found(service, request)))


async def cancel(context: ServerContext, request: Request) -> Response:
    """See `dialects.anthropic.batches.cancel_batch`."""
    service = await batch_service(context)
    batch = await _found(service, request)
    cancelled = await service.cancel(batch.owner, batch.id)
    assert cancelled is not None
    return json_response(await _document(service, request, cancelled))


async def delete(context: ServerContext, request: Request) -> Response:
    """See `dialects.anthropic.batches.delete_batch`."""
    service = await batch_service(context)
    batch = await _found(service, request)
    if batch.status not in _ENDED:
        raise reject(400, f"{batch.id} has not ended: cancel it first, then remove it")
    await service.database.write(partial(batches.remove, batch_id=batch.id))
    return json_response({"id": batch.id, "type": "message_batch_deleted"})


async def results(context: ServerContext, request: Request) -> Response:
    """See `dialects.anthropic.batches.get_results`."""
    service = await batch_service(context)
    batch = await _found(service, request)
    if batch.status not in _ENDED:
        raise reject(400, f"{batch.id} has not ended: its results come when it has")
    return StreamingResponse(_results(service, batch.id), media_type="application/x-jsonl")


async def _results(service: BatchService, batch_id: str) -> AsyncIterator[bytes]:
    outcomes = [outcome for outcome in Outcome if outcome is not Outcome.OPEN]
    async for page in service.results(batch_id, outcomes):
        yield b"".join(_line(result) for result in page)


def _line(result: Result) -> bytes:
    document: Mapping[str, Any]
    if result.outcome is Outcome.SUCCEEDED:
        document = {"type": "succeeded", "message": msgspec.Raw(result.answer)}
    elif result.outcome is Outcome.FAILED:
        document = {"type": "errored", "error": msgspec.Raw(result.answer)}
    else:
        name = "canceled" if result.outcome is Outcome.CANCELLED else "expired"
        document = {"type": name}
    return msgspec.json.encode({"custom_id": result.custom_id, "result": document}) + b"\n"
