"""The requests that a pipeline's process answers: one task each."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from tidemill.pipelines.api import Answer, BadRequest, ModelError, Models, Request
from tidemill.pipelines.calls import Calls
from tidemill.pipelines.load import Function, lines_of
from tidemill.pipelines.messages import (
    PIECE_BYTES,
    WINDOW_BYTES,
    Credit,
    Ended,
    Raised,
    Start,
    Stop,
    Text,
    ToServer,
)


class _Window:
    """Bytes of text that may be sent before the server has taken more."""

    def __init__(self) -> None:
        self._left = WINDOW_BYTES
        self._more = asyncio.Event()

    async def take(self, size: int) -> None:
        while self._left <= 0:
            self._more.clear()
            await self._more.wait()
        self._left -= size

    def give(self, size: int) -> None:
        self._left += size
        self._more.set()


class Runs:
    """Starts, stops and reports runs.

    Args:
        path: the pipeline's file.
        function: its ``answer``.
        send: writes a message to the server.
        calls: for the models' handles.
    """

    def __init__(
        self, path: Path, function: Function, send: Callable[[ToServer], None], calls: Calls
    ) -> None:
        self._path = path
        self._function = function
        self._send = send
        self._calls = calls
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._windows: dict[int, _Window] = {}

    def start(self, start: Start) -> None:
        """Answer a request."""
        self._windows[start.run] = _Window()
        self._tasks[start.run] = asyncio.create_task(self._run(start), name=start.request_id)

    def stop(self, stop: Stop) -> None:
        """Cancel a run."""
        task = self._tasks.get(stop.run)
        if task is not None:
            task.cancel()

    def credit(self, credit: Credit) -> None:
        """The server took text of a run."""
        window = self._windows.get(credit.run)
        if window is not None:
            window.give(credit.size)

    async def _run(self, start: Start) -> None:
        ending: ToServer = Ended(start.run)
        try:
            await self._answer(start)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            ending = self._raised(start.run, error)
        finally:
            del self._tasks[start.run], self._windows[start.run]
            self._send(ending)

    async def _answer(self, start: Start) -> None:
        found = self._function(Request(start), Models(start, self._calls))
        if inspect.isasyncgen(found):
            async with aclosing(found) as texts:
                await self._forward(start.run, texts)
            return
        text = await found
        if isinstance(text, Answer):
            text = text.text
        if hasattr(text, "__aiter__"):
            await self._forward(start.run, text)
        else:
            await self._text(start.run, text, "returned")

    async def _forward(self, run: int, texts: AsyncIterator[Any]) -> None:
        async for text in texts:
            await self._text(run, text, "yielded")

    async def _text(self, run: int, text: object, verb: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"answer {verb} {type(text).__name__}; it yields or returns text (str)")
        for piece in _pieces(text):
            await self._windows[run].take(len(piece.encode()))
            self._send(Text(run, piece))

    def _raised(self, run: int, error: BaseException) -> Raised:
        kind = type(error).__name__
        where = f"{kind} at {lines_of(error.__traceback__, self._path)}"
        if isinstance(error, BadRequest):
            return Raised(run, where, rejection=str(error))
        if isinstance(error, ModelError):
            return Raised(run, where, call=error.call)
        return Raised(run, where)


def _pieces(text: str) -> Iterator[str]:
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
    size = PIECE_BYTES // 4
    for start in range(0, len(text), size):
        yield text[start : start + size]
