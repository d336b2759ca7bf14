"""A request becomes a generation: of a model's engine, or of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.base.errors import bad_request, unsupported
from tidemill.generation.prepare import prepare
from tidemill.generation.request import GenerateRequest
from tidemill.server.host.generation import EngineGeneration, Generation
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel

if TYPE_CHECKING:
    from tidemill.server.host.position import Positions


async def begin_generation(
    model: ServedModel,
    request_id: str,
    asked: GenerateRequest,
    *,
    max_answer_bytes: int,
    streamed: bool,
    callers: Sequence[str] = (),
    positions: Positions | None = None,
) -> Generation:
    """Prepare a request for what answers it.

    Args:
        model: leased until the generation has ended.
        request_id: engine request ids are derived from it.
        asked: the request.
        max_answer_bytes: bound on the size of the answer.
        streamed: output is sent as it is generated.
        callers: the pipelines that the request comes from, outermost first.
        positions: of a stream whose positions are told, or that goes on from one.

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
    if positions is not None and positions.resumes and (model.pipeline is not None or not streamed):
        from tidemill.contract.position import HEADER  # few have one

        what = "a pipeline" if streamed else "a request that is not streamed"
        raise unsupported(HEADER, f"the answer of {what} cannot be gone on with")
    if model.pipeline is not None:
        return await model.pipeline.generation(
            request_id,
            asked,
            max_answer_bytes=max_answer_bytes,
            streamed=streamed,
            callers=callers,
        )
    prepared = await prepare(model, asked, LOOP)
    if positions is not None and not (streamed and positions.begin(model.info, prepared)):
        positions = None
    if positions is not None:
        positions.leaving = lambda: model.admission.leaving
    return EngineGeneration(
        model,
        request_id,
        prepared,
        max_answer_bytes=max_answer_bytes,
        streamed=streamed,
        positions=positions,
    )
