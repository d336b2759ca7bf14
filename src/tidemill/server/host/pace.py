"""How the server prepares requests: long work in threads, with turns for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tidemill.text.tokenizer import SHORT_TEXT_CHARS

P = ParamSpec("P")
T = TypeVar("T")


class LoopPace:
    """A `generation.pace.Pace` for an event loop that must not be blocked."""

    async def call(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it in a thread."""
        return await asyncio.to_thread(work, *args, **kwargs)

    async def short(
        self, size: int, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run it at once if `size` is small, else in a thread."""
        if size <= SHORT_TEXT_CHARS:
            return work(*args, **kwargs)
        return await asyncio.to_thread(work, *args, **kwargs)

    async def pause(self) -> None:
        """Let other tasks run."""
        await asyncio.sleep(0)


LOOP = LoopPace()
