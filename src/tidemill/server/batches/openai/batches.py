"""Batches: created, listed, read and cancelled."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.server.access.auth import principal_of
from tidemill.server.batches.open import batch_service
from tidemill.server.batches.openai import schema
from tidemill.server.batches.owners import described
from tidemill.server.batches.service import BatchService, new_batch
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.query import check_query, number, page_of
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response
from tidemill.store import batches, files
from tidemill.store.batches import Batch

_TIMES = (
    *("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"),
)
DIALECT = "openai"


def document_of(batch: Batch) -> dict[str, Any]:
    """The object of OpenAI's API."""
    errors = None
    if batch.errors:
        errors = {"object": "list", "data": list(batch.errors)}
    window = next(k for k, v in schema.WINDOW_SECONDS.items() if v == batch.window_seconds)
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": errors,
        "input_file_id": batch.input_file_id,
        "completion_window": window,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.created,
        "expires_at": batch.expires,
        **{f"{name}_at": batch.times.get(name) for name in _TIMES},
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "metadata": batch.metadata,
    }


async def _found(service: BatchService, request: Request) -> Batch:
    identity: str = request.path_params["batch_id"]
    batch = await service.find(principal_of(request).client_id, identity)
    if batch is None or batch.dialect != DIALECT:
        raise reject(404, f"there is no batch {identity[:80]!r}", param="batch_id")
    return batch


async def create(context: ServerContext, request: Request) -> Response:
    """See `dialects.openai.batches.create_batch`."""
    body = await read_model(schema.BatchRequest, request, context.limits)
    service = await batch_service(context)
    principal = principal_of(request)
    file = await service.database.read(
        partial(files.find, owner=principal.client_id, file_id=body.input_file_id)
    )
    if file is None or file.batch_id is not None:
        raise reject(
            404,
            f"input_file_id: there is no uploaded file {body.input_file_id[:80]!r}",
            param="input_file_id",
        )
    if file.purpose != "batch":
        raise bad_request(
            "input_file_id",
            f"input_file_id: the file was uploaded for {file.purpose}; upload it for batch",
        )
    after = body.output_expires_after
    batch = new_batch(
        DIALECT,
        body.endpoint,
        principal.client_id,
        described(principal),
        service.now,
        window_seconds=schema.WINDOW_SECONDS[body.completion_window],
        input_file_id=file.id,
        metadata=body.metadata,
        output_seconds=None if after is None else after.seconds,
    )
    return json_response(document_of(await service.create(batch)))


async def listed(context: ServerContext, request: Request) -> Response:
    """See `dialects.openai.batches.list_batches`."""
    check_query(request, frozenset({"after", "limit"}))
    limit = number(request, "limit", 1, 100) or 20
    service = await batch_service(context)
    found = await service.database.read(
        partial(
            batches.listed,
            owner=principal_of(request).client_id,
            dialect=DIALECT,
            after=request.query_params.get("after"),
            limit=limit + 1,
        )
    )
    shown = [document_of(batch) for batch in found[:limit]]
    return page_of(shown, more=len(found) > limit)


async def get(context: ServerContext, request: Request) -> Response:
    """See `dialects.openai.batches.get_batch`."""
    return json_response(document_of(await _found(await batch_service(context), request)))


async def cancel(context: ServerContext, request: Request) -> Response:
    """See `dialects.openai.batches.cancel_batch`."""
    service = await batch_service(context)
    batch = await _found(service, request)
    cancelled = await service.cancel(batch.owner, batch.id)
    assert cancelled is not None
    return json_response(document_of(cancelled))
