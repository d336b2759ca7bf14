"""What adds a model to the library over HTTP: events about its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.base.clock import monotonic
from tidemill.server.errors import fail, problem_response
from tidemill.server.host.source import OnPull
from tidemill.server.transport.framing import Framing
from tidemill.server.transport.pieces import json_response
from tidemill.server.transport.sink import AsgiSink
from tidemill.server.transport.stream import Stream, while_connected

PROGRESS_SECONDS = 0.1
"""Between two events about the bytes of one stage."""


class PullAnswer(Response):
    """The progress of a pull (or of a creation), and its end. A client that leaves ends it.

    Args:
        request: the HTTP request.
        pull: adds the model, tells how far it is, and returns the model's name.
        framing: of the events; None: the last one alone is the answer.
        done: the last event, by the name of the model.
    """

    def __init__(
        self,
        request: Request,
        pull: Callable[[OnPull], Coroutine[Any, Any, str]],
        framing: Framing | None,
        done: Callable[[str], dict[str, Any]],
    ) -> None:
        super().__init__()
        self._request = request
        self._pull = pull
        self._framing = framing
        self._done = done
        self._told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._last = ("", 0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; a disconnect of the client ends the pull."""

        async def serve() -> None:
            try:
                if self._framing is None:
                    name = await self._pull(lambda *told: None)
                    await json_response(self._done(name))(scope, receive, send)
                else:
                    await self._stream(send, self._framing)
            except Exception as error:
                problem = fail(self._request, error)
                response = problem_response(problem, self._request.state.error_body)
                await response(scope, receive, send)

        await while_connected(receive, serve())

    async def _stream(self, send: Send, framing: Framing) -> None:
        stream = Stream(AsgiSink(send), framing, lambda: b"")
        try:
            async with aclosing(stream):
                await self._write(stream, framing)
        except Exception as error:
            if not stream.started:
                raise
            error_body = self._request.state.error_body
            part = framing.part(error_body(fail(self._request, error)))
            await stream.write(part, more=False)

    async def _write(self, stream: Stream, framing: Framing) -> None:
        def part(event: dict[str, Any]) -> bytes:
            return framing.part(msgspec.json.encode(event))

        pulling = asyncio.ensure_future(self._pull(self._tell))
        pulling.add_done_callback(lambda _: self._told.put_nowait(None))
        try:
            while (event := await self._told.get()) is not None:
                await stream.write(stream.begin() + part(event))
            name = await pulling
        finally:
            pulling.cancel()
            await asyncio.gather(pulling, return_exceptions=True)
        await stream.write(stream.begin() + part(self._done(name)), more=False)

    def _tell(self, stage: str, done: int, total: int, message: str | None) -> None:
        # In the thread of the pull.
        if message is None and stage in ("resolving", "complete"):
            return  # an error while the source is looked up has a status of its own
        now = monotonic()
        last, at = self._last
        if message is None and stage == last and now < at + PROGRESS_SECONDS and done < total:
            return
        self._last = stage, now
        event: dict[str, Any] = {"status": stage}
        if total:
            event |= {"completed": done, "total": total}
        if message is not None:
            event["message"] = message
        self._loop.call_soon_threadsafe(self._told.put_nowait, event)
