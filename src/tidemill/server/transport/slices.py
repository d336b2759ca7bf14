"""Long sequences in slices, so that other tasks of the event loop run in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


async def slices(items: Sequence[_T], size: int) -> AsyncIterator[Sequence[_T]]:
    """Yield `items` in slices of `size`, and yield to the event loop between them."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
