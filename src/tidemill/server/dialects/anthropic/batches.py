"""The routes of message batches; what answers is imported when it is first needed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.batches.anthropic import schema
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import Endpoint


async def create_message_batch(context: ServerContext, request: Request) -> Response:
    """Answer many requests, in capacity that nobody else wants."""
    body = await read_model(schema.MessageBatchRequest, request, context.limits)
    from tidemill.server.batches.anthropic import batches

    return await batches.create(context, request, body)


async def list_message_batches(context: ServerContext, request: Request) -> Response:
    """The caller's batches, the latest first."""
    from tidemill.server.batches.anthropic import batches

    return await batches.listed(context, request)


async def get_message_batch(context: ServerContext, request: Request) -> Response:
    """A batch and how far it is."""
    from tidemill.server.batches.anthropic import batches

    return await batches.get(context, request)


async def cancel_message_batch(context: ServerContext, request: Request) -> Response:
    """Cancel a batch; what is answered already stays."""
    from tidemill.server.batches.anthropic import batches

    return await batches.cancel(context, request)


async def delete_message_batch(context: ServerContext, request: Request) -> Response:
    """Remove a batch that has ended, and its results."""
    from tidemill.server.batches.anthropic import batches

    return await batches.delete(context, request)


async def get_message_batch_results(context: ServerContext, request: Request) -> Response:
    """The results of a batch that has ended, one JSON object a line."""
    from tidemill.server.batches.anthropic import batches

    return await batches.results(context, request)


_BATCH = "/v1/messages/batches/{batch_id}"

ENDPOINTS = (
    Endpoint("POST", "/v1/messages/batches", create_message_batch, schema.MessageBatchRequest),
    Endpoint("GET", "/v1/messages/batches", list_message_batches),
    Endpoint("GET", _BATCH, get_message_batch),
    Endpoint("DELETE", _BATCH, delete_message_batch),
    Endpoint("POST", f"{_BATCH}/cancel", cancel_message_batch),
    Endpoint(
        "GET", f"{_BATCH}/results", get_message_batch_results, streams=("application/x-jsonl",)
    ),
)
