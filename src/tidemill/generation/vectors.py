"""Requests without generation: embeddings and scores, from inputs to engine requests and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.base.errors import bad_request
from tidemill.contract.request import EngineRequest, Pooling
from tidemill.contract.resolve import check_input
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import Caller
from tidemill.generation.pace import INLINE, Pace
from tidemill.generation.prepare import encode_source, engine_request
from tidemill.generation.request import EmbedRequest, Model, ScoreRequest, Source
from tidemill.text.vectors import (
    Input,
    check_dimensions,
    embedding_pooling,
    pair_input,
    pooling_of,
    prompted,
    score_pooling,
    side_prompts,
)

if TYPE_CHECKING:
    from tidemill.text.pooled import Float32

NO_SAMPLING = SamplingParams(max_tokens=1, seed=0)
"""Nothing is sampled; one token stands for the work after the prompt."""


@dataclass(frozen=True, slots=True)
class PreparedInputs:
    """Inputs as the engine takes them.

    Attributes:
        inputs: the encoded texts or pairs.
        pooling: applied to each.
        caller, arrival: see `GenerateRequest`.
    """

    inputs: Sequence[Input]
    pooling: Pooling
    caller: Caller
    arrival: float

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(len(i.token_ids) for i in self.inputs)

    def engine_request(
        self, place: int, request_id: str, *, max_queue_time: float | None = None
    ) -> EngineRequest:
        """The request to the engine for one of the inputs."""
        item = self.inputs[place]
        return engine_request(
            request_id,
            item.token_ids,
            NO_SAMPLING,
            self.caller,
            self.arrival,
            place=place,
            max_queue_time=max_queue_time,
            pooling=pooling_of(item, self.pooling),
        )


async def prepare_embedding(
    model: Model, request: EmbedRequest, pace: Pace = INLINE
) -> PreparedInputs:
    """Put the model's prompt before each input and tokenize it.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    data = model.info.vectors
    pooling = embedding_pooling(data)
    check_dimensions(request.dimensions, model.info.hidden_size)
    inputs = []
    single = len(request.inputs) == 1
    for index, source in enumerate(request.inputs):
        param = request.param if single else f"{request.param}[{index}]"
        whole: Source = source
        if isinstance(source, str):
            whole = prompted(source, data, request.prompt_name) if source else source
        elif request.prompt_name is not None:
            raise bad_request("prompt_name", "prompt_name needs inputs that are texts")
        ids = await encode_source(model, whole, param, pace, output_tokens=0)
        inputs.append(Input(ids))
    return PreparedInputs(inputs, pooling, request.caller, request.arrival)


def embedding_of(model: Model, pooled: bytes, dimensions: int | None) -> Float32:
    """The embedding of an input, float32 [dimensions], from the engine's pooled vector."""
    from tidemill.text.pooled import finish_embedding  # numpy, see there

    return finish_embedding(pooled, model.info.vectors, dimensions)


async def prepare_scores(
    model: Model, request: ScoreRequest, pace: Pace = INLINE
) -> PreparedInputs:
    """The inputs of a score request.

    A cross-encoder reads both texts as one input. With any other model each text is embedded, and
    the score is the cosine similarity of the two vectors.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    data = model.info.vectors
    inputs: list[Input] = []
    if data.head == "score":
        pooling = score_pooling(data)
        names = _numbered(request.params[1], len(request.seconds))
        for i, j in request.pairs:
            pair = (request.firsts[i], request.seconds[j])
            made = await pace.call(pair_input, model.tokenizer, model.template, data, *pair)
            check_input(len(made.token_ids), model.info.max_model_len, param=names[j])
            inputs.append(made)
    else:
        pooling = embedding_pooling(data)
        sides = (request.firsts, request.seconds)
        for texts, param, prompt in zip(sides, request.params, side_prompts(data), strict=True):
            for text, name in zip(texts, _numbered(param, len(texts)), strict=True):
                whole = prompted(text, data, prompt) if text else text
                ids = await encode_source(model, whole, name, pace, output_tokens=0)
                inputs.append(Input(ids))
    return PreparedInputs(inputs, pooling, request.caller, request.arrival)


def scores_of(model: Model, request: ScoreRequest, pooled: Sequence[bytes]) -> list[float]:
    """The scores of the request's pairs, from the pooled vectors of its inputs."""
    from tidemill.text.pooled import finish_score, similarity  # numpy, see there

    data = model.info.vectors
    if data.head == "score":
        return [finish_score(vector, data) for vector in pooled]
    count = len(request.firsts)
    return [similarity(pooled[i], pooled[count + j]) for i, j in request.pairs]


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}[{i}]" for i in range(count)]
