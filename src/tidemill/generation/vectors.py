"""Requests without generation: embeddings and scores, from inputs to engine requests and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tidemill.base.errors import bad_request
from tidemill.base.vector_data import VectorData
from tidemill.contract.request import AdapterUse, EngineRequest, Pooling
from tidemill.contract.resolve import check_input
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import Caller
from tidemill.generation.encoding import encode_source
from tidemill.generation.pace import INLINE, Pace
from tidemill.generation.prepare import bounded_context, engine_request
from tidemill.generation.request import Cut, EmbedRequest, Model, ScoreRequest, Source
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
        cut: names of the inputs of which a part was left out, such as ``input[2]``.
    """

    inputs: Sequence[Input]
    pooling: Pooling
    caller: Caller
    arrival: float
    cut: Sequence[str] = ()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(len(i.token_ids) for i in self.inputs)

    def engine_request(
        self,
        place: int,
        request_id: str,
        *,
        max_queue_time: float | None = None,
        explain: bool = False,
        adapters: tuple[AdapterUse, ...] = (),
    ) -> EngineRequest:
        """The request to the engine for one of the inputs; `adapters`: see `EngineRequest`."""
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
            explain=explain,
            adapters=adapters,
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
    reader = _Reader(model, request.cut, request.context, request.context_param, pace)
    inputs = []
    names = _numbered(request.param, len(request.inputs))
    for index, source in enumerate(request.inputs):
        whole: Source = source
        if isinstance(source, str):
            whole = prompted(source, data, request.prompt_name) if source else source
        elif request.prompt_name is not None:
            raise bad_request("prompt_name", "prompt_name needs inputs that are texts")
        inputs.append(await reader.read(whole, names[index]))
    return PreparedInputs(inputs, pooling, request.caller, request.arrival, tuple(reader.shortened))


class _Reader:
    """Tokenizes inputs, within the bound of a request.

    Attributes:
        shortened: names of the inputs of which a part was left out.
    """

    def __init__(
        self, model: Model, cut: Cut | None, context: int | None, name: str, pace: Pace
    ) -> None:
        self.shortened: dict[str, None] = {}
        self._model, self._cut, self._pace = model, cut, pace
        self._most = bounded_context(model, context, name)
        self._bound = f" ({name})" if context is not None else ""

    async def read(self, source: Source, param: str) -> Input:
        """The tokens of one input.

        Raises:
            TidemillError: kind BAD_REQUEST naming `param`.
        """
        if self._cut is not None:
            from tidemill.generation.cutting import cut_source  # few requests need it

            ids, cut = await cut_source(
                self._model, source, param, self._most, self._cut, self._pace
            )
            self._note(param, cut=cut)
            return Input(ids)
        ids = await encode_source(self._model, source, param, self._pace, output_tokens=0)
        return self._checked(Input(ids), param)

    async def first_tokens(self, text: str, most: int | None, param: str) -> str:
        """A text without what exceeds its own bound."""
        if most is None:
            return text
        from tidemill.generation.cutting import cut_text  # few requests need it

        text, cut = await cut_text(self._model, text, most, self._cut or Cut.END, self._pace)
        self._note(param, cut=cut)
        return text

    async def pair(self, first: str, second: str, param: str) -> Input:
        """The tokens of two texts that are one input.

        Raises:
            TidemillError: kind BAD_REQUEST naming `param`.
        """
        model = self._model
        make = partial(pair_input, model.tokenizer, model.template, model.info.vectors, first)
        if self._cut is None:
            return self._checked(await self._pace.call(make, second), param)
        from tidemill.generation.cutting import cut_second  # few requests need it

        made, cut = await cut_second(model, second, self._most, self._cut, make, self._pace)
        self._note(param, cut=cut)
        return self._checked(made, param)

    def _note(self, param: str, *, cut: bool) -> None:
        if cut:
            self.shortened[param] = None

    def _checked(self, made: Input, param: str) -> Input:
        check_input(len(made.token_ids), self._most, param=param, bound=self._bound)
        return made


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
    reader = _Reader(model, request.cut, request.context, request.context_param, pace)
    firsts, seconds = (
        _numbered(name, len(texts))
        for name, texts in zip(request.params, (request.firsts, request.seconds), strict=True)
    )
    texts = [
        await reader.first_tokens(text, request.second_tokens, seconds[j])
        for j, text in enumerate(request.seconds)
    ]
    if data.head == "score":
        pooling = score_pooling(data)
        inputs = [
            await reader.pair(request.firsts[i], texts[j], seconds[j]) for i, j in request.pairs
        ]
    else:
        pooling = embedding_pooling(data)
        queries, documents = side_prompts(data)
        inputs = []
        for i, text in enumerate(request.firsts):
            inputs.append(await reader.read(_with_prompt(text, data, queries), firsts[i]))
        for j, text in enumerate(texts):
            whole = _with_prompt(text, data, documents)
            inputs.append(await reader.read(whole, seconds[j]))
    return PreparedInputs(inputs, pooling, request.caller, request.arrival, tuple(reader.shortened))


def _with_prompt(text: str, data: VectorData, name: str | None) -> str:
    return prompted(text, data, name) if text else text


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
