"""Files that clients send: written to disk as they arrive, and never held in memory."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from tidemill.server.access.limits import Limits
from tidemill.server.errors import reject
from tidemill.server.host.source import Source

WRITE_BYTES = 2**20
"""Bytes that are written at once."""


async def receive_file(source: Source, digest: str, request: Request, limits: Limits) -> None:
    """Receive the file that a request's body is.

    It may take any time, as long as something arrives within `body_idle_timeout`.

    Args:
        source: keeps it.
        digest: of the file.
        request: whose body it is.
        limits: bounds.

    Raises:
        TidemillError: BAD_REQUEST for a wrong digest, RESOURCE where the disk is full.
        Rejection: 408 where it does not arrive, 400 where the client leaves, 415 for a coding.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise reject(415, f"Content-Encoding {coding!r} is not taken; send the file as it is")
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else None
    request.scope.get("extensions", {}).get("tidemill.long_body", _nothing)()
    upload = await asyncio.to_thread(source.receive_file, digest, size)
    loop, waiting = asyncio.get_running_loop(), bytearray()
    try:
        async with asyncio.timeout(limits.body_idle_timeout) as clock:
            async for part in request.stream():
                waiting += part
                if len(waiting) >= WRITE_BYTES:
                    # The disk may be slow: its time is not the client's.
                    clock.reschedule(None)
                    await asyncio.to_thread(upload.write, bytes(waiting))
                    waiting.clear()
                clock.reschedule(loop.time() + limits.body_idle_timeout)
            clock.reschedule(None)
        await asyncio.to_thread(upload.write, bytes(waiting))
        await asyncio.to_thread(upload.finish)
    except TimeoutError:
        seconds = f"{limits.body_idle_timeout:g} s"
        raise reject(408, f"nothing more of the file arrived within {seconds}") from None
    except ClientDisconnect:
        raise reject(400, "the client closed the connection before the file was complete") from None
    finally:
        await asyncio.shield(asyncio.to_thread(upload.close))


def _nothing() -> None:
    """Of a server without the extension: bodies have no timer there."""
