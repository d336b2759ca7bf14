"""The routes that compute. What answers them is imported by the first request: a server that gets
none saves it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.kserve.schema import KserveGenerate, KserveStream


async def infer(context: ServerContext, request: Request) -> Response:
    """Tensors to tensors: `text_input` to `text_output` or `embedding`, `query` and `documents` to
    `score`; the metadata of a model lists them."""
    from tidemill.server.dialects.kserve.inference import answer_inference

    return await answer_inference(context, request)


async def generate(context: ServerContext, request: Request) -> Response:
    """Continue a text."""
    from tidemill.server.dialects.kserve.generation import answer_generation

    arrival = monotonic()
    body = await read_model(KserveGenerate, request, context.limits, bare=True)
    return answer_generation(context, request, body, arrival, streamed=False)


async def generate_stream(context: ServerContext, request: Request) -> Response:
    """Continue a text, with an event for each step."""
    from tidemill.server.dialects.kserve.generation import answer_generation

    arrival = monotonic()
    body = await read_model(KserveStream, request, context.limits, bare=True)
    return answer_generation(context, request, body, arrival, streamed=True)
