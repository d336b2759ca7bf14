"""A response, whole and as the events of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.generation.choices import ChoiceDelta
from tidemill.server.dialects.openai.effective import effective
from tidemill.server.dialects.openai.responses.document import Answered, Response, usage
from tidemill.server.dialects.openai.responses.output import Event, Events, Output
from tidemill.server.errors import Problem
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.framing import SSE
from tidemill.server.transport.sink import Piece

encode = msgspec.json.encode
Ended = Callable[[Response], None]


class ResponseFormat:
    """Writes a response.

    Args:
        answered: what follows from the request.
        output: its items.
        model: that answers.
        ended: called with the final object of a response that ended by itself.
        warms: only the prompt was computed: there is no output.
    """

    content_type = b"application/json"

    def __init__(
        self,
        answered: Answered,
        output: Output,
        model: ServedModel,
        ended: Ended,
        *,
        warms: bool = False,
    ) -> None:
        self._answered = answered
        self._output = output
        self._model = model
        self._ended = ended
        self._warms = warms
        self._number = 0
        self._finish: str | None = None
        self._stopped_by: str | int | None = None

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """There is nothing of the prompt in an answer."""

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta to the items."""
        self._take(delta)

    def _take(self, delta: ChoiceDelta) -> Events:
        if self._warms:
            return []
        events = self._output.add(delta)
        if delta.finish is not None:
            self._finish, self._stopped_by = delta.finish, delta.stopped_by
            events += self._output.end(cut=delta.finish == "length")
        return events

    def document(self, generation: Generation) -> list[Piece]:
        """The whole answer."""
        return [encode(self._final(generation))]

    def _final(self, generation: Generation) -> Response:
        cut = self._finish == "length"
        more: dict[str, Any] = {"usage": usage(generation)}
        if cut:
            more["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._stopped_by is not None:
            more["stop_reason"] = self._stopped_by
        if self._answered.body.include_effective:
            more["tidemill"] = effective(self._model, generation)
        status = "incomplete" if cut else "completed"
        final = self._answered.document(status, self._output.items, **more)
        self._ended(final)
        return final

    def opening(self, generation: Generation) -> bytes:
        """The response before its first item."""
        response = self._answered.document("in_progress", [])
        return self._framed(
            [
                {"type": "response.created", "response": response},
                {"type": "response.in_progress", "response": response},
            ]
        )

    def events(self, delta: ChoiceDelta) -> bytes:
        """The events of a delta."""
        return self._framed(self._take(delta))

    def closing(self, generation: Generation) -> bytes:
        """The event with the whole response."""
        final = self._final(generation)
        return self._framed([{"type": f"response.{final['status']}", "response": final}])

    def failure(self, problem: Problem) -> bytes:
        """The event that ends a stream that fails."""
        failed = self._answered.failed(problem, self._output.items)
        self._ended(failed)
        return self._framed([{"type": "response.failed", "response": failed}])

    def cancelled(self) -> tuple[Response, bytes]:
        """The object of a response that was cancelled, and the event that ends its stream."""
        response = self._answered.document("cancelled", self._output.items)
        return response, self._framed([{"type": "response.incomplete", "response": response}])

    def _framed(self, events: Events) -> bytes:
        return b"".join(map(self._one, events))

    def _one(self, event: Event) -> bytes:
        kind = event["type"]
        numbered = {"type": kind, "sequence_number": self._number, **event}
        self._number += 1
        return b"event: %b\n%b" % (kind.encode(), SSE.part(encode(numbered)))
