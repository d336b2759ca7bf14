"""A request becomes a generation: of a model's engine, or of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemill.base.errors import bad_request
from tidemill.generation.prepare import prepare
from tidemill.generation.request import GenerateRequest
from tidemill.server.host.generation import EngineGeneration, Generation
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel


async def begin_generation(
    model: ServedModel,
    request_id: str,
    asked: GenerateRequest,
    *,
    max_answer_bytes: int,
    streamed: bool,
    callers: Sequence[str] = (),
) -> Generation:
    """Prepare a request for what answers it.

    Args:
        model: leased until the generation has ended.
        request_id: engine request ids are derived from it.
        asked: the request.
        max_answer_bytes: bound on the size of the answer.
        streamed: output is sent as it is generated.
        callers: the pipelines that the request comes from, outermost first.

    Raises:
        TidemillError: kind BAD_REQUEST or UNSUPPORTED, naming the field.
    """
    if streamed and asked.sampling.chosen:
        raise bad_request(
            "best_of", "best_of above n cannot be streamed: the best answers are known at the end"
        )
    if model.adapters and asked.adapter is None:
        asked = replace(asked, adapters=model.adapters)
    if model.watch is not None and not asked.adapters:
        model.watch.asked = asked
    if model.pipeline is not None:
        return await model.pipeline.generation(
            request_id,
            asked,
            max_answer_bytes=max_answer_bytes,
            streamed=streamed,
            callers=callers,
        )
    return EngineGeneration(
        model,
        request_id,
        await prepare(model, asked, LOOP),
        max_answer_bytes=max_answer_bytes,
        streamed=streamed,
    )
