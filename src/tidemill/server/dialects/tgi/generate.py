"""POST /generate, /generate_stream and /."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.ids import new_id
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.respond import GeneratedAnswer
from tidemill.server.dialects.tgi.schema import (
    TgiGenerateRequest,
    TgiInputs,
    TgiParameters,
    TgiRequest,
    TgiStreamRequest,
)
from tidemill.server.dialects.tgi.translate import SENT_AS, generate_request
from tidemill.server.host.generation import Generation
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.framing import SSE

if TYPE_CHECKING:
    from tidemill.server.dialects.tgi.answer import TgiFormat


async def generate(context: ServerContext, request: Request) -> Response:
    """Continue a text."""
    arrival = monotonic()
    body = await read_model(TgiGenerateRequest, request, context.limits)
    return _answer(context, request, body, arrival, streamed=False)


async def generate_stream(context: ServerContext, request: Request) -> Response:
    """Continue a text, with an event for each token."""
    arrival = monotonic()
    body = await read_model(TgiStreamRequest, request, context.limits)
    return _answer(context, request, body, arrival, streamed=True)


async def generate_either(context: ServerContext, request: Request) -> Response:
    """Continue a text, whole (a list with one answer) or streamed."""
    arrival = monotonic()
    body = await read_model(TgiRequest, request, context.limits)
    return _answer(context, request, body, arrival, streamed=bool(body.stream), listed=True)


def _answer(
    context: ServerContext,
    request: Request,
    body: TgiInputs,
    arrival: float,
    *,
    streamed: bool,
    listed: bool = False,
) -> GeneratedAnswer:
    names: dict[str, str] = request.state.sent_as
    names |= {name: names.get(sent, sent) for name, sent in SENT_AS.items()}
    caller = caller_of(request, None, arrival)
    asked = generate_request(body, caller, arrival, streamed=streamed)

    async def make_format(model: ServedModel, generation: Generation) -> TgiFormat:
        from tidemill.server.dialects.tgi.answer import TgiFormat  # a server without it saves it

        parameters, text = body.parameters or TgiParameters(), body.inputs
        if parameters.return_full_text and not isinstance(text, str):
            text = await LOOP.short(len(text), model.tokenizer.decode, text)
        return TgiFormat(model.tokenizer, text, parameters, generation, listed=listed)

    framing = SSE if streamed else None
    answer_id = new_id("tgi")
    return GeneratedAnswer(context, request, body.model, asked, answer_id, make_format, framing)
