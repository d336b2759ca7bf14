"""A GET of the gateway's own to a target."""

from __future__ import annotations

import asyncio

from tidemill.gateway.targets import Target

SECONDS = 5.0
"""That a target has to answer."""

MAX_BYTES = 4 << 20


async def get(target: Target, path: str, most: int = MAX_BYTES) -> tuple[int, bytes]:
    """Status and body.

    Args:
        target: whom to ask.
        path: with its query.
        most: bytes of the body.

    Raises:
        Lost, TimeoutError: it does not answer.
        Full: all its connections are in use.
    """
    async with asyncio.timeout(SECONDS):
        async with target.pool.exchange(target.get(path)) as connection:
            status = await connection.head()
            return status, await connection.read_all(most)
