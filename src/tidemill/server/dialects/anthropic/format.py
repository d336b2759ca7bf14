"""A `message`, whole and as events."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.generation.choices import REPETITION, TOOL_CALLS, ChoiceDelta
from tidemill.server.dialects.anthropic.blocks import BlockWriter, Content, Event
from tidemill.server.host.generation import Generation
from tidemill.server.transport.framing import SSE, Framing
from tidemill.server.transport.sink import Piece

encode = msgspec.json.encode

EVENTS = Framing(
    SSE.content_type,
    b"",
    b"\n\n",
    b'event: ping\ndata: {"type": "ping"}\n\n',
    SSE.headers,
)
"""Server-sent events with names; a part is all lines of an event."""

# Members that their published schema requires, of what is not here.
_NO_DETAILS = {"stop_details": None, "container": None}
_NO_SERVICE = {"cache_creation": None, "inference_geo": None, "service_tier": "standard"}

_REASONS = {"stop": "end_turn", "length": "max_tokens", TOOL_CALLS: "tool_use"}


def framed(event: Event) -> bytes:
    """One event of a stream."""
    return EVENTS.part(b"event: %b\ndata: %b" % (event["type"].encode(), encode(event)))


class MessageFormat:
    """Writes one answer.

    Args:
        message_id, model: members of the answer.
        writer: of its blocks.
        max_tokens: as the request has it; the context may hold less.
        caching: the request marks what shall be cached.
        block_size: tokens of a block of the prefix cache; 0: there is none.
    """

    content_type = b"application/json"

    def __init__(
        self,
        message_id: str,
        model: str,
        writer: BlockWriter,
        *,
        max_tokens: int,
        caching: bool,
        block_size: int,
    ) -> None:
        self._id = message_id
        self._model = model
        self._writer = writer
        self._content = Content()
        self._max_tokens = max_tokens
        self._block_size = block_size if caching else 0
        self._reason: str | None = None
        self._stopped_by: str | None = None

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """There is nothing of the prompt in an answer."""

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta to the document."""
        for event in self._events(delta):
            self._content.apply(event)

    def document(self, generation: Generation) -> list[Piece]:
        """The whole answer."""
        message = self._message(generation)
        return [
            encode(
                {
                    **message,
                    "content": self._content.document(),
                    **self._end(generation),
                    "usage": {**_NO_SERVICE, **self._usage(generation)},
                }
            )
        ]

    def opening(self, generation: Generation) -> bytes:
        """The start of the message, with the usage so far."""
        return framed({"type": "message_start", "message": self._message(generation)})

    def events(self, delta: ChoiceDelta) -> bytes:
        """Events of the blocks."""
        return b"".join(map(framed, self._events(delta)))

    def closing(self, generation: Generation) -> bytes:
        """Why it ended, the usage, and the end."""
        delta = {
            "type": "message_delta",
            "delta": self._end(generation),
            "usage": self._usage(generation),
        }
        return framed(delta) + framed({"type": "message_stop"})

    def _events(self, delta: ChoiceDelta) -> list[Event]:
        if delta.finish is not None:
            self._reason = _REASONS[delta.finish]
            if isinstance(delta.stopped_by, str) and delta.stopped_by != REPETITION:
                self._reason, self._stopped_by = "stop_sequence", delta.stopped_by
        return [] if self._max_tokens == 0 else list(self._writer.events(delta))

    def _message(self, generation: Generation) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            **_NO_DETAILS,
            "usage": {**_NO_SERVICE, **self._usage(generation), "output_tokens": 0},
        }

    def _end(self, generation: Generation) -> dict[str, Any]:
        reason, most = self._reason, generation.prepared.sampling[0].max_tokens or 0
        cut = reason == "max_tokens" and most < self._max_tokens
        if cut and generation.completion_tokens >= most:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": self._stopped_by, **_NO_DETAILS}

    def _usage(self, generation: Generation) -> dict[str, Any]:
        """Their sum of input tokens is that of the three members.

        Every prompt is cached, in whole blocks. What is new there counts as created where the
        request marks something to be cached: others expect it among the input tokens.
        """
        cached, prompt = generation.cached_tokens, generation.prompt_tokens
        size = self._block_size
        created = max(prompt // size * size - cached, 0) if size else 0
        return {
            "input_tokens": prompt - cached - created,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": cached,
            "output_tokens": generation.completion_tokens,
            "output_tokens_details": {"thinking_tokens": generation.reasoning_tokens},
            "server_tool_use": None,
        }
