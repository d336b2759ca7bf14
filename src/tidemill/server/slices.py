"""Work on large things in slices, so that the event loop's other tasks have their turns between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


async def slices(items: Sequence[_T], size: int) -> AsyncIterator[Sequence[_T]]:
    """`items` in slices of `size`, with a turn of the event loop between two of them."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
