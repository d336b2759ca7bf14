"""Writes a generation in a dialect's format: whole, or as a stream with one write per step.

The status is sent after the first step, so that a request that the engine rejects gets an error
response and not a broken stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from tidemill.generation.choices import ChoiceDelta
from tidemill.server.host.generation import Generation
from tidemill.server.transport.framing import Framing
from tidemill.server.transport.sink import WRITE_BYTES, Piece, Sink, write_document
from tidemill.server.transport.stream import Stream


class Format(Protocol):
    """How a dialect writes one generation."""

    content_type: bytes
    """Of a whole answer."""

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """Process the prompt's part of a choice's first delta; called before `add` or `events`."""

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta to the document (non-streaming)."""

    def document(self, generation: Generation) -> list[Piece]:
        """The whole answer, in pieces."""

    def opening(self, generation: Generation) -> bytes:
        """Parts before the first delta, framed."""

    def events(self, delta: ChoiceDelta) -> bytes:
        """Parts for a delta, framed; empty when there is nothing to show."""

    def closing(self, generation: Generation) -> bytes:
        """Parts after the last delta, framed, the end marker included."""


Begin = Callable[[], Awaitable[tuple[Generation, Format]]]


async def write_whole(sink: Sink, begin: Begin) -> None:
    """Run a generation and write its document.

    Args:
        sink: where it goes; nothing is written where an exception is raised.
        begin: prepares the request and makes its format; may take long (a model is loaded).
    """
    generation, form = await begin()
    async with aclosing(generation.steps()) as steps:
        async for deltas in steps:
            for delta in deltas:
                if delta.first:
                    await form.read_prompt(delta)
                form.add(delta)
    await write_document(sink, form.document(generation), form.content_type)


async def write_stream(
    sink: Sink,
    begin: Begin,
    framing: Framing,
    failure: Callable[[Exception], bytes],
) -> None:
    """Run a generation and write its parts as they come.

    Args:
        sink: where it goes; nothing is written where an exception is raised.
        begin: see `write_whole`.
        framing: of the parts.
        failure: the parts that end a stream that fails after its start.
    """
    begun: tuple[Generation, Format] | None = None

    def opening() -> bytes | None:
        if begun is None:
            return None
        positions, parts = begun[0].positions, begun[1].opening(begun[0])
        return b"" if positions is not None and positions.resumes else parts

    stream = Stream(sink, framing, opening)
    try:
        async with aclosing(stream):
            begun = generation, form = await begin()
            stream.waiting = False
            positions = generation.positions
            async with aclosing(generation.steps()) as steps:
                async for deltas in steps:
                    data = stream.begin()
                    repeating = positions is not None and positions.repeating
                    for delta in deltas:
                        if delta.first:
                            await form.read_prompt(delta)
                        data += form.events(delta)
                        if len(data) > WRITE_BYTES and not repeating:
                            await stream.write(data)
                            data = b""
                    if positions is not None:
                        whole = generation.finished
                        data = positions.behind(data, events=framing.events, whole=whole)
                    if generation.finished:
                        await stream.write(data + form.closing(generation), more=False)
                    elif data:
                        moved = positions is not None and positions.moved
                        await stream.write(data, more=not moved)
                        if moved:
                            return
    except Exception as error:
        if not stream.started:
            raise
        await stream.write(failure(error), more=False)
