"""POST /v1/responses: whole, as a stream, or in the background."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.base.ids import new_underscored_id
from tidemill.server.access.auth import Principal, principal_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.logprobs import token_entries
from tidemill.server.dialects.openai.responses.asked import (
    SEALED,
    Asked,
    continued,
    only_the_prompt,
    read_request,
)
from tidemill.server.dialects.openai.responses.document import Answered
from tidemill.server.dialects.openai.responses.output import Output, Shown
from tidemill.server.dialects.openai.responses.response_format import ResponseFormat, encode
from tidemill.server.dialects.openai.responses.schema import ResponseRequest
from tidemill.server.dialects.openai.responses.service import EARLY_SECONDS, Service, service_of
from tidemill.server.dialects.openai.responses.store import Recent, StoredResponse
from tidemill.server.dialects.openai.translate import caller_for
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.respond import GeneratedAnswer
from tidemill.server.errors import Problem, fail, reject
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.detached import Detached
from tidemill.server.transport.framing import SSE
from tidemill.server.transport.pieces import json_response


async def create(context: ServerContext, request: Request) -> Response:
    """See `routes.create_response`."""
    arrival = monotonic()
    body = await read_model(ResponseRequest, request, context.limits)
    find_model(context, request, body.model)  # a wrong name is the first error
    called = context.host.called(body.model)
    caller = caller_for(request, body, arrival)
    service, principal = service_of(context), principal_of(request)
    owner = principal.client_id
    stored = _is_stored(body, principal)
    await service.recall(owner, *continued(body))
    recent: Recent | None = getattr(request.state, "recent", None)
    asked = read_request(body, request, owner, service.store, context.limits, recent)
    answered = Answered(
        new_underscored_id("resp"),
        body,
        asked.tools,
        called,
        conversation=None if asked.conversation is None else asked.conversation.id,
        notices=_left_out(asked),
    )
    writing = _Writing(service, request, owner, asked, answered, recent, stored=stored)
    writing.entry.team = principal.team
    generate = asked.generate(caller, arrival)
    if getattr(request.state, "warms", False):
        generate = only_the_prompt(generate)
    answer = GeneratedAnswer(
        context,
        request,
        body.model,
        generate,
        answered.id,
        writing.make_format,
        SSE if body.stream or body.background else None,
        writing.failure,
        keep_alive_of(body.keep_alive),
    )
    if not body.background:
        return answer
    return await _in_background(service, writing, answer)


def _is_stored(body: ResponseRequest, principal: Principal) -> bool:
    """Whether the response is kept: unless the request or the key says that it is not.

    Raises:
        TidemillError: kind BAD_REQUEST: the request needs it, and the key forbids it.
    """
    if not principal.policy.no_content:
        return body.store is not False
    if body.store or body.background:
        name = "store" if body.store else "background"
        raise bad_request(name, f"{name}: what this key says is not kept; send store: false")
    body.store = False
    return False


async def _in_background(service: Service, writing: _Writing, answer: GeneratedAnswer) -> Response:
    entry = writing.entry
    run = service.start(entry, answer, writing)
    try:
        await run.stream.settled(EARLY_SECONDS)
    except Exception:
        await service.remove(entry)  # the error is the answer
        raise
    if writing.answered.body.stream:
        return Followed(run.stream, 0)
    return json_response(entry.response)


class _Writing:
    """One response from its preparation to the store.

    Attributes:
        answered: what follows from the request.
        entry: what is kept of it.
    """

    def __init__(
        self,
        service: Service,
        request: Request,
        owner: str,
        asked: Asked,
        answered: Answered,
        recent: Recent | None,
        *,
        stored: bool,
    ) -> None:
        self._service = service
        self._recent = recent
        self._stored = stored
        self._request = request
        self._asked = asked
        self._format: ResponseFormat | None = None
        self.answered = answered
        self.entry = StoredResponse(owner, answered.document("queued", []), asked.given)

    async def make_format(self, model: ServedModel, generation: Generation) -> ResponseFormat:
        """The format of the prepared request."""
        prepared, answered, body = generation.prepared, self.answered, self._asked.body
        answered.model, answered.fingerprint = model.name, model.fingerprint
        answered.sampling = prepared.sampling[0]
        if prepared.dropped:
            answered.notices.append(_dropped(self._asked, prepared.dropped))
        if prepared.cut:
            answered.notices.append(_CUT)
        tokenizer = model.tokenizer
        shown = Shown(
            reasoning=prepared.options.thinking.shown,
            summary=body.reasoning is not None and body.reasoning.summary is not None,
            sealed=SEALED in self._asked.includes,
            entries=None
            if prepared.request.sampling.logprobs is None
            else lambda pieces: token_entries(tokenizer, pieces),
        )
        output = Output(self._asked.tools, shown)
        warms = prepared.request.scored
        self._format = ResponseFormat(answered, output, model, self._ended, warms=warms)
        if body.background:
            self.entry.response = answered.document("in_progress", output.items)
            self._service.keep(self.entry)
        return self._format

    def failure(self, problem: Problem) -> bytes:
        """The events that end a stream that fails."""
        if self._format is not None:
            return self._format.failure(problem)
        event = {
            "type": "error",
            "sequence_number": 0,
            "code": problem.code,
            "message": problem.message,
            "param": problem.param,
        }
        return b"event: error\n" + SSE.part(encode(event))

    def failed(self, error: Exception) -> dict[str, Any]:
        """See `Ending`."""
        return self.answered.failed(fail(self._request, error), [])

    def cancelled(self) -> tuple[dict[str, Any], bytes]:
        """See `Ending`."""
        if self._format is None:
            return self.answered.document("cancelled", []), b""
        return self._format.cancelled()

    def _ended(self, response: dict[str, Any]) -> None:
        """Keep a response that has ended, and add it to its conversation."""
        conversation = self._asked.conversation
        if self._stored:
            self._service.end(self.entry, response)
        if self._recent is not None:
            self.entry.response = response
            self._recent.keep(self.entry, response["output"])
        if conversation is not None and response["status"] != "failed":
            self._service.append(conversation, [*self.entry.given.items, *response["output"]])


def _left_out(asked: Asked) -> list[dict[str, Any]]:
    kinds = list(dict.fromkeys(asked.tools.not_served))
    if not kinds:
        return []
    names = ", ".join(kinds)
    message = f"this server does not run these tools, and the model was not shown them: {names}"
    return [{"type": "tools_not_served", "tools": kinds, "message": message}]


_CUT = {
    "type": "input_truncated",
    "message": "the prompt was cut to its last tokens, as truncate_prompt_tokens asks for",
}


def _dropped(asked: Asked, messages: tuple[int, ...]) -> dict[str, Any]:
    items = [item for index in messages for item in asked.turns.items[index]]
    return {
        "type": "input_truncated",
        "items": items,
        "message": f"the input exceeds the context: its {len(items)} oldest items were left out",
    }


class Followed(Response):
    """The events of a background response, from one of them on, as a stream.

    Args:
        stream: of the response.
        start: number of the first event.
    """

    def __init__(self, stream: Detached, start: int) -> None:
        super().__init__()
        if start < stream.log.first:
            raise reject(
                400,
                f"starting_after: events before {stream.log.first} are no longer kept",
                param="starting_after",
            )
        self._stream = stream
        self._start = start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve; a client that disconnects may come back."""
        await self._stream.serve(receive, send, self._start)
