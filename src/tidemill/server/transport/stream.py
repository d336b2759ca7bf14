"""Answers as ASGI responses that are cancelled when the client disconnects.

Streams are pre-encoded bytes, one write per step. The status is sent after the first step, so that
a request that the engine rejects gets an HTTP error and not a broken stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.base.log import get_logger
from tidemill.server.errors import problem_of
from tidemill.server.host.generation import ChoiceDelta, Generation
from tidemill.server.transport.pieces import WRITE_BYTES, Piece, write_pieces
from tidemill.server.transport.turns import next_turn

log = get_logger(__name__)

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


KEEP_ALIVE_SECONDS = 15.0
"""A stream that has been silent for so long sends a comment: proxies close what is silent for 60 s
or so, and a long prompt, a queue, or a tool call that is written may take longer."""

_COMMENT = b": keep-alive\n\n"


class Format(Protocol):
    """How a dialect writes a generation."""

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """Process the prompt's part of a choice's first delta; called before `add` or `events`."""

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta to the document (non-streaming)."""

    def document(self, generation: Generation) -> list[Piece]:
        """The whole answer, in pieces."""

    def opening(self, generation: Generation) -> bytes:
        """Events before the first delta."""

    def events(self, delta: ChoiceDelta) -> bytes:
        """Events for a delta; empty when there is nothing to show."""

    def closing(self, generation: Generation) -> bytes:
        """Events after the last delta, the end marker included."""


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; cancel it as soon as the client disconnects, and wait until it has ended."""
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnected.cancel()
        if not task.done():
            try:
                await next_turn()  # many clients may disconnect at once
            finally:
                task.cancel()
        # Gathered: the cancellation is expected, and errors are raised below.
        await asyncio.gather(task, disconnected, return_exceptions=True)
    if not task.cancelled():
        task.result()


class Answer(Response):
    """Runs a generation and writes it, whole or as server-sent events."""

    def __init__(
        self,
        generation: Generation,
        form: Format,
        *,
        stream: bool,
        request_id: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers=dict(headers or {}))
        self._generation = generation
        self._form = form
        self._stream = stream
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; a disconnect of the client cancels the generation."""
        generation = self._generation
        scope.setdefault("state", {})["generation"] = generation  # for the log of requests
        log.debug(
            "request %s: %s, %d prompt tokens, %d choices",
            *(self._request_id, generation.request_id),
            *(generation.prompt_tokens, generation.num_choices),
        )
        work = self._send_events if self._stream else self._send_document
        await while_connected(receive, work(send))

    async def _send_document(self, send: Send) -> None:
        form = self._form
        try:
            async with aclosing(self._generation.steps()) as steps:
                async for deltas in steps:
                    for delta in deltas:
                        if delta.first:
                            await form.read_prompt(delta)
                        form.add(delta)
            pieces = form.document(self._generation)
        except Exception as error:
            await self._send_problem(error, send)
            return
        await write_pieces(send, pieces)

    async def _send_events(self, send: Send) -> None:
        generation, form = self._generation, self._form
        out = _Events(send, lambda: form.opening(generation))
        try:
            async with aclosing(out), aclosing(generation.steps()) as steps:
                async for deltas in steps:
                    data = out.begin()
                    for delta in deltas:
                        if delta.first:
                            await form.read_prompt(delta)
                        data += form.events(delta)
                        if len(data) > WRITE_BYTES:
                            await out.write(data)
                            data = b""
                    if generation.finished:
                        await out.write(data + form.closing(generation), more=False)
                    elif data:
                        await out.write(data)
        except Exception as error:
            if out.started:
                event = b"data: " + problem_of(error, self._request_id).body() + b"\n\n"
                await out.write(event, more=False)
            else:
                await self._send_problem(error, send)

    async def _send_problem(self, error: Exception, send: Send) -> None:
        response = problem_of(error, self._request_id).response()
        headers = response.raw_headers
        start = {"type": "http.response.start", "status": response.status_code}
        await send({**start, "headers": headers})
        await send(_part(bytes(response.body), more=False))


class _Events:
    """The events of one stream, in order, with a comment where there was none for long.

    The head goes out with the first of them, so that what fails before has a status of its own;
    or with the first comment.

    Args:
        send: of the connection.
        opening: the events before all others.
    """

    def __init__(self, send: Send, opening: Callable[[], bytes]) -> None:
        self.started = False
        self._send = send
        self._opening = opening
        self._head_sent = False
        self._turn = asyncio.Lock()
        self._wrote = True
        self._commenting: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.call_later(KEEP_ALIVE_SECONDS, self._look)

    def begin(self) -> bytes:
        """The opening events, once; from here on an error is an event."""
        if self.started:
            return b""
        self.started = True
        return self._opening()

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send whole events."""
        self._wrote = True
        async with self._turn:
            if not self._head_sent:
                start = {"type": "http.response.start", "status": 200}
                await self._send({**start, "headers": _STREAM_HEADERS})
                self._head_sent = True
            await self._send(_part(data, more=more))

    async def aclose(self) -> None:
        """Send no more comments."""
        self._clock.cancel()
        if self._commenting is not None:
            self._commenting.cancel()
            await asyncio.gather(self._commenting, return_exceptions=True)

    def _look(self) -> None:
        # One look per period, not a clock per event: it comes after one to two periods of silence.
        silent, self._wrote = not self._wrote, False
        if silent and not self._turn.locked():
            self._commenting = self._loop.create_task(self.write(self.begin() + _COMMENT))
        self._clock = self._loop.call_later(KEEP_ALIVE_SECONDS, self._look)


def _part(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}
