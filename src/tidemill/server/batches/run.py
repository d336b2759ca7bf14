"""One batch at work: lines become requests, answers become results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.server.batches.request import Answer
from tidemill.store.batches import Line, Outcome, Result

log = get_logger(__name__)

PAGE = 128
"""Lines that are read at once."""

FLUSH_LINES = 64
FLUSH_SECONDS = 0.25
"""Results wait so long, or for so many, to be written in one transaction."""

MAX_RESULTS = 256
"""Results that may wait, however slow the database is."""

RETRIED = frozenset({429, 502, 503})
"""Statuses that say "later": the server is busy, the engine restarts, a limit is reached."""

MAX_RETRY_SECONDS = 30.0

Send = Callable[[Line], Awaitable[Answer]]


class LineStore(Protocol):
    """Where a run's lines come from, and where their results go."""

    async def open_lines(self, after: int, limit: int) -> Sequence[Line]:
        """Lines without a result, in order, of a number above `after`."""

    async def record(self, results: Sequence[Result]) -> None:
        """Write results; it returns when they are safe."""


class Run:
    """Answers the lines of one batch.

    Args:
        lines: their store.
        send: answers one line; cancelling it cancels the request.
        window: how many lines may be in flight now; it is asked again for each.

    Attributes:
        answered: lines with a result, by this run.
    """

    def __init__(self, lines: LineStore, send: Send, window: Callable[[], int]) -> None:
        self.answered = 0
        self._lines = lines
        self._send = send
        self._window = window
        self._results: list[Result] = []
        self._flush = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until every line has a result. Cancelling it cancels the requests in flight; results
        that were there are written."""
        writer = asyncio.ensure_future(self._write())
        answering = asyncio.ensure_future(self._all())
        try:
            await asyncio.wait((writer, answering), return_when=asyncio.FIRST_COMPLETED)
            for task in (writer, answering):
                if task.done():
                    task.result()
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            await self._write_now()

    async def _all(self) -> None:
        waiting: deque[Line] = deque()
        after, more = -1, True
        while waiting or more or self._tasks:
            if more and not waiting:
                page = await self._lines.open_lines(after, PAGE)
                waiting.extend(page)
                more = len(page) == PAGE
                after = page[-1].number if page else after
            while waiting and len(self._tasks) < max(1, self._window()) and not self._behind:
                self._begin(waiting.popleft())
            if self._tasks or self._behind:
                self._changed.clear()
                with suppress(TimeoutError):  # the window may grow while nothing ends
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await self._changed.wait()
                for task in [task for task in self._tasks if task.done()]:
                    self._tasks.discard(task)
                    task.result()

    @property
    def _behind(self) -> bool:
        """Whether so many results wait to be written that no further line may begin."""
        return len(self._results) >= MAX_RESULTS

    def _begin(self, line: Line) -> None:
        task = asyncio.ensure_future(self._answer(line))
        task.add_done_callback(lambda _: self._changed.set())
        self._tasks.add(task)

    async def _answer(self, line: Line) -> None:
        delay = 0.5
        while True:
            answer = await self._send(line)
            if answer.status not in RETRIED or _never(answer):
                break
            await asyncio.sleep(_wait(answer, delay))
            delay = min(2 * delay, MAX_RETRY_SECONDS)
        good = 200 <= answer.status < 300
        self._results.append(
            Result(
                line.number,
                line.custom_id,
                Outcome.SUCCEEDED if good else Outcome.FAILED,
                answer.status,
                answer.headers.get("x-request-id", ""),
                answer.body,
            )
        )
        self.answered += 1
        if len(self._results) >= FLUSH_LINES:
            self._flush.set()

    async def _write(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._flush.wait()
            self._flush.clear()
            await self._write_now()

    async def _write_now(self) -> None:
        results = list(self._results)
        if not results:
            return
        began = monotonic()
        await asyncio.shield(asyncio.ensure_future(self._lines.record(results)))
        del self._results[: len(results)]
        self._changed.set()
        if (seconds := monotonic() - began) > 5.0:
            log.warning("%d results of a batch took %.1f s to be written", len(results), seconds)


def _never(answer: Answer) -> bool:
    """Whether it is said that the request can never be answered."""
    told = answer.headers
    return told.get("x-should-retry") == "false" and "retry-after" not in told


def _wait(answer: Answer, delay: float) -> float:
    try:
        asked = float(answer.headers.get("retry-after", ""))
    except ValueError:
        asked = 0.0
    return min(max(asked, delay), MAX_RETRY_SECONDS)
