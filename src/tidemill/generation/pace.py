"""How preparation yields: `prepare` is written once and awaits nothing but a `Pace`.

The server's pace runs long work in threads and lets the event loop take turns. `INLINE` does
everything at once and never suspends, so that `run_inline` needs no event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Pace(Protocol):
    """Where the work of preparing a request runs."""

    async def call(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what may take long."""

    async def short(
        self, size: int, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run what takes long only if `size` (characters) is large."""

    async def pause(self) -> None:
        """Between two parts of a long piece of work."""


class InlinePace:
    """Everything at once, in the calling thread."""

    async def call(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it."""
        return work(*args, **kwargs)

    async def short(
        self, size: int, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run it."""
        return work(*args, **kwargs)

    async def pause(self) -> None:
        """Go on."""


INLINE = InlinePace()


def run_inline(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine whose pace is `INLINE`."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise AssertionError("work that is run inline must not suspend")


async def slices(items: Sequence[T], size: int, pace: Pace) -> AsyncIterator[Sequence[T]]:
    """`items` in slices of `size`, with a pause between them."""
    for start in range(0, len(items), size):
        if start:
            await pace.pause()
        yield items[start : start + size]
