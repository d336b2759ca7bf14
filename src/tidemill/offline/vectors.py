"""Embeddings and scores of the offline Python API."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.ids import new_id
from tidemill.contract.request import EngineRequest, FinishReason, Pooling
from tidemill.contract.resolve import check_input
from tidemill.contract.sampling import SamplingParams
from tidemill.engine.offline import InprocEngine
from tidemill.engine.streams import raise_error
from tidemill.text.vectors import Input, pooling_of

_NOTHING = SamplingParams(max_tokens=1, seed=0)


def run_vectors(engine: InprocEngine, inputs: Sequence[Input], pooling: Pooling) -> list[bytes]:
    """Each input's pooled vector as float32 bytes, in order.

    Raises:
        TidemillError: BAD_REQUEST for an input that is too long, or the engine's error.
    """
    requests = []
    for item in inputs:
        check_input(len(item.token_ids), engine.info.max_model_len, param="input")
        requests.append(
            EngineRequest(
                request_id=new_id("llm"),
                prompt_token_ids=item.token_ids,
                sampling=_NOTHING,
                arrival=monotonic(),
                pooling=pooling_of(item, pooling),
            )
        )
    found: dict[str, bytes] = {}
    for output in engine.run(requests):
        if output.error is not None:
            raise_error(output.error)
        if output.finish_reason is FinishReason.CANCELLED:
            raise TidemillError(ErrorKind.UNAVAILABLE, "the engine has stopped", retryable=True)
        if output.finish_reason is not None:
            found[output.request_id] = output.pooled
    return [found[request.request_id] for request in requests]
