"""POST /v1/responses/compact: the model itself sums a conversation up.

The answer is a list of items to go on with: the users' messages, and one item of the kind
`compaction` in place of everything else. Its text is packed like thinking (`sealed`), and is shown
to the model as a user's message.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic, wall
from tidemill.base.errors import unsupported
from tidemill.base.ids import new_underscored_id
from tidemill.generation.choices import ChoiceDelta
from tidemill.server.access.auth import principal_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.openai.responses.asked import Asked, continued, read_request
from tidemill.server.dialects.openai.responses.document import usage
from tidemill.server.dialects.openai.responses.items import COMPACTION
from tidemill.server.dialects.openai.responses.schema import CompactRequest
from tidemill.server.dialects.openai.responses.sealed import seal
from tidemill.server.dialects.openai.responses.service import service_of
from tidemill.server.dialects.openai.translate import caller_for
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.respond import GeneratedAnswer
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.sink import Piece

ASK = (
    "Sum this conversation up for whoever goes on with it and sees nothing else of it but the "
    "user's messages: what was asked, what was found out and decided, what was done (files, "
    "commands and their results, with their exact names), what is still to be done, and what the "
    "user wants. Write the summary alone."
)


async def compact(context: ServerContext, request: Request) -> Response:
    """See `routes.compact_response`."""
    arrival = monotonic()
    body = await read_model(CompactRequest, request, context.limits)
    find_model(context, request, body.model)  # a wrong name is the first error
    service, owner = service_of(context), principal_of(request).client_id
    await service.recall(owner, *continued(body))
    asked = read_request(body, request, owner, service.store, context.limits)
    asked.turns.add({"role": "user", "content": ASK}, "input")
    # Tools stay in the prompt, so that it begins like the conversation's and is in the cache.
    body.tool_choice = "none" if body.tools else None
    generate = asked.generate(caller_for(request, body, arrival), arrival)
    generate = replace(generate, clip_max_tokens=True)

    async def make_format(model: ServedModel, generation: Generation) -> CompactFormat:
        return CompactFormat(asked)

    return GeneratedAnswer(
        context,
        request,
        body.model,
        generate,
        new_underscored_id("resp"),
        make_format,
        None,
        keep_alive=keep_alive_of(body.keep_alive),
    )


class CompactFormat:
    """Writes the items to go on with. There is no stream of it.

    Args:
        asked: the conversation.
    """

    content_type = b"application/json"

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._texts: list[str] = []

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """There is nothing of the prompt in an answer."""

    def add(self, delta: ChoiceDelta) -> None:
        """A part of the summary."""
        self._texts.append(delta.text)

    def document(self, generation: Generation) -> list[Piece]:
        """The answer.

        Raises:
            TidemillError: the model wrote no summary: nothing may be put in the items' place.
        """
        summary = "".join(self._texts).strip()
        if not summary:
            raise unsupported(
                None, "the model wrote no summary; allow more max_output_tokens, or go on without"
            )
        # What an earlier compaction said is in the summary.
        kept: list[dict[str, Any]] = [
            item
            for item in self._asked.given.all_items()
            if item["type"] == "message" and item["role"] == "user"
        ]
        item = {
            "id": new_underscored_id("cmp"),
            "type": COMPACTION,
            "encrypted_content": seal(summary),
        }
        answer = {
            "id": new_underscored_id("resp"),
            "object": "response.compaction",
            "created_at": int(wall()),
            "output": [*kept, item],
            "usage": usage(generation),
        }
        return [msgspec.json.encode(answer)]

    def opening(self, generation: Generation) -> bytes:
        """Not called: it is not streamed."""
        raise NotImplementedError

    def events(self, delta: ChoiceDelta) -> bytes:
        """Not called: it is not streamed."""
        raise NotImplementedError

    def closing(self, generation: Generation) -> bytes:
        """Not called: it is not streamed."""
        raise NotImplementedError
