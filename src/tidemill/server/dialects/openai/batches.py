"""The routes of files and batches; what answers is imported when it is first needed."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.server.batches.openai import schema
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import Endpoint


async def upload_file(context: ServerContext, request: Request) -> Response:
    """Upload a file (multipart/form-data: file, purpose) for a batch."""
    from tidemill.server.batches.openai import files

    return await files.upload(context, request)


async def list_files(context: ServerContext, request: Request) -> Response:
    """The caller's files, the latest first."""
    from tidemill.server.batches.openai import files

    return await files.listed(context, request)


async def get_file(context: ServerContext, request: Request) -> Response:
    """A file, without its content."""
    from tidemill.server.batches.openai import files

    return await files.get(context, request)


async def get_file_content(context: ServerContext, request: Request) -> Response:
    """The content of a file."""
    from tidemill.server.batches.openai import files

    return await files.content(context, request)


async def delete_file(context: ServerContext, request: Request) -> Response:
    """Remove a file."""
    from tidemill.server.batches.openai import files

    return await files.delete(context, request)


async def create_batch(context: ServerContext, request: Request) -> Response:
    """Answer every line of a file, in capacity that nobody else wants."""
    from tidemill.server.batches.openai import batches

    return await batches.create(context, request)


async def list_batches(context: ServerContext, request: Request) -> Response:
    """The caller's batches, the latest first."""
    from tidemill.server.batches.openai import batches

    return await batches.listed(context, request)


async def get_batch(context: ServerContext, request: Request) -> Response:
    """A batch and how far it is."""
    from tidemill.server.batches.openai import batches

    return await batches.get(context, request)


async def cancel_batch(context: ServerContext, request: Request) -> Response:
    """Cancel a batch; what is answered already stays."""
    from tidemill.server.batches.openai import batches

    return await batches.cancel(context, request)


ENDPOINTS = (
    Endpoint("POST", "/v1/files", upload_file),
    Endpoint("GET", "/v1/files", list_files),
    Endpoint("GET", "/v1/files/{file_id}", get_file),
    Endpoint("GET", "/v1/files/{file_id}/content", get_file_content),
    Endpoint("DELETE", "/v1/files/{file_id}", delete_file),
    Endpoint("POST", "/v1/batches", create_batch, schema.BatchRequest),
    Endpoint("GET", "/v1/batches", list_batches),
    Endpoint("GET", "/v1/batches/{batch_id}", get_batch),
    Endpoint("POST", "/v1/batches/{batch_id}/cancel", cancel_batch),
)
