"""The generate extension: one text in, one document or a stream of events out."""

from __future__ import annotations

from starlette.requests import Request

from tidemill.base.errors import bad_request
from tidemill.base.ids import new_id
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.kserve.answer import GenerateFormat, head_of
from tidemill.server.dialects.kserve.models import model_of
from tidemill.server.dialects.kserve.options import generate_request, merged
from tidemill.server.dialects.kserve.schema import KserveGenerate, KserveStream
from tidemill.server.dialects.respond import GeneratedAnswer
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.framing import SSE


def answer_generation(
    context: ServerContext,
    request: Request,
    body: KserveGenerate | KserveStream,
    arrival: float,
    *,
    streamed: bool,
) -> GeneratedAnswer:
    """The answer to a body of the generate extension.

    Raises:
        Rejection, TidemillError: the request is wrong.
    """
    name = model_of(context, request)
    options = merged([body, body.parameters])
    if streamed and (options.n or 1) > 1:
        raise bad_request("n", "n above 1 cannot be streamed: events have no index; use generate")
    if streamed and options.exclude_input_in_output is False:
        at = "exclude_input_in_output"
        raise bad_request(at, f"{at} cannot be false in a stream: its events are new text")
    asked = generate_request([body.text_input], options, caller_of(request, None, arrival), arrival)
    head = head_of(name, body.id)

    async def make_format(model: ServedModel, generation: Generation) -> GenerateFormat:
        return GenerateFormat(generation, head, body.text_input, options, streamed=streamed)

    framing = SSE if streamed else None
    answer_id = new_id("generate")
    return GeneratedAnswer(context, request, name, asked, answer_id, make_format, framing)
