"""Files: uploaded in chunks, listed, read and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidemill.base.clock import wall
from tidemill.base.errors import bad_request
from tidemill.base.ids import new_id
from tidemill.server.access.auth import principal_of
from tidemill.server.batches.open import batch_service
from tidemill.server.batches.output import FILES, output_line
from tidemill.server.batches.service import BatchService
from tidemill.server.batches.upload import read_form
from tidemill.server.context import ServerContext
from tidemill.server.dialects.query import ascending, check_query, number, page_of
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response
from tidemill.store import files
from tidemill.store.database import Database
from tidemill.store.files import CHUNK_BYTES, File

PURPOSES = ("batch", "user_data")
MAX_FILE_BYTES = 200 * 2**20
MAX_HELD_BYTES = 4 * 2**30
"""Of all files of one client."""

IDLE_SECONDS = 30.0
MAX_LISTED = 10_000
MIN_EXPIRY, MAX_EXPIRY = 3600, 2592000


def _document(file: File) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created,
        "expires_at": file.expires,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": file.status,
        "status_details": None,
    }


async def _found(service: BatchService, request: Request) -> File:
    identity: str = request.path_params["file_id"]
    work = partial(files.find, owner=principal_of(request).client_id, file_id=identity)
    file = await service.database.read(work)
    if file is None:
        raise reject(404, f"there is no file {identity[:80]!r}", param="file_id")
    return file


async def upload(context: ServerContext, request: Request) -> Response:
    """See `dialects.openai.batches.upload_file`."""
    service = await batch_service(context)
    database, owner = service.database, principal_of(request).client_id
    held = await database.read(partial(files.held, owner=owner))
    now = int(wall())
    identity = new_id("file")
    request.state.hold.need(2 * CHUNK_BYTES)
    file = File(identity, owner, "batch", "", files.UPLOADING, 0, now, None, None)
    await database.write(partial(files.begin, file=file))
    count = 0

    async def append(data: bytes) -> None:
        nonlocal count
        await database.write(partial(files.append, file_id=identity, number=count, data=data))
        count += 1

    try:
        form = await read_form(
            request,
            append,
            chunk=CHUNK_BYTES,
            most=min(MAX_FILE_BYTES, MAX_HELD_BYTES - held),
            idle=IDLE_SECONDS,
        )
        purpose, expires = _options(form.fields, now)
        assert form.filename is not None
        done = File(
            identity, owner, purpose, form.filename, files.READY, form.size, now, expires, None
        )
        await database.write(partial(files.finish, file=done))
    except BaseException:
        await database.write(partial(files.remove, file_id=identity))
        raise
    return json_response(_document(done))


def _options(fields: dict[str, str], now: int) -> tuple[str, int | None]:
    """Purpose, and when it expires.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    purpose = fields.pop("purpose", None)
    if purpose not in PURPOSES:
        got = "it is missing" if purpose is None else f"got {purpose[:32]!r}"
        raise bad_request("purpose", f"purpose must be {' or '.join(PURPOSES)}; {got}")
    fields.pop("expires_after[anchor]", None)
    seconds = fields.pop("expires_after[seconds]", None)
    if fields:
        name = next(iter(fields))
        raise bad_request(name[:64], f"{name[:64]} is not a field of a file")
    if seconds is None:
        return purpose, None
    plain = seconds.isascii() and seconds.isdigit() and len(seconds) < 9
    if not plain or not MIN_EXPIRY <= int(seconds) <= MAX_EXPIRY:
        raise bad_request(
            "expires_after.seconds",
            f"expires_after.seconds must be from {MIN_EXPIRY} to {MAX_EXPIRY}",
        )
    return purpose, now + int(seconds)


async def listed(context: ServerContext, request: Request) -> Response:
    """See `dialects.openai.batches.list_files`."""
    check_query(request, frozenset({"purpose", "limit", "order", "after"}))
    limit = number(request, "limit", 1, MAX_LISTED) or MAX_LISTED
    query, oldest_first = request.query_params, ascending(request)
    service = await batch_service(context)
    found = await service.database.read(
        partial(
            files.listed,
            owner=principal_of(request).client_id,
            purpose=query.get("purpose"),
            after=query.get("after"),
            limit=limit + 1,
            ascending=oldest_first,
        )
    )
    shown = [_document(file) for file in found[:limit]]
    return page_of(shown, more=len(found) > limit)


async def get(context: ServerContext, request: Request) -> Response:
    """See `dialects.openai.batches.get_file`."""
    return json_response(_document(await _found(await batch_service(context), request)))


async def delete(context: ServerContext, request: Request) -> Response:
    """See `dialects.openai.batches.delete_file`."""
    service = await batch_service(context)
    file = await _found(service, request)
    await service.database.write(partial(files.remove, file_id=file.id))
    return json_response({"id": file.id, "object": "file", "deleted": True})


async def content(context: ServerContext, request: Request) -> Response:
    """See `dialects.openai.batches.get_file_content`."""
    service = await batch_service(context)
    file = await _found(service, request)
    if file.batch_id is None:
        parts = _chunks(service.database, file.id)
    else:
        parts = _lines(service, file, file.batch_id)
    return StreamingResponse(
        parts,
        media_type="application/octet-stream",
        headers={"Content-Length": str(file.bytes)},
    )


async def _chunks(database: Database, file_id: str) -> AsyncIterator[bytes]:
    number = 0
    while data := await database.read(partial(files.chunk, file_id=file_id, number=number)):
        yield data
        number += 1


async def _lines(service: BatchService, file: File, batch_id: str) -> AsyncIterator[bytes]:
    batch = await service.find(file.owner, batch_id)
    if batch is None:
        return
    column = next(name for name in FILES if getattr(batch, name) == file.id)
    async for page in service.results(batch_id, FILES[column][1]):
        yield b"".join(output_line(batch_id, result) for result in page)
