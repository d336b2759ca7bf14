"""Embeddings and scores, as every dialect computes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from tidemill.base.errors import bad_request
from tidemill.generation.pace import slices
from tidemill.generation.request import EmbedRequest, ScoreRequest
from tidemill.generation.vectors import (
    PreparedInputs,
    embedding_of,
    prepare_embedding,
    prepare_scores,
    scores_of,
)
from tidemill.server.admission.answers import AnswerSize, vectors_size
from tidemill.server.context import ServerContext
from tidemill.server.dialects.truncated import name_truncated
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.host.vectors import Vectors
from tidemill.telemetry.record import Operation

if TYPE_CHECKING:
    from tidemill.text.pooled import Float32

VECTORS_AT_ONCE = 8
"""Vectors that are encoded without yielding to the event loop."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of a request's inputs.

    Attributes:
        prompt_tokens, cached_tokens: usage.
        length: numbers of a vector.
        cut: names of the inputs of which a part was left out, such as ``input[2]``.
    """

    prompt_tokens: int
    cached_tokens: int
    length: int
    cut: Sequence[str]
    _model: ServedModel
    _pooled: Sequence[bytes]
    _dimensions: int | None

    async def embeddings(self) -> AsyncIterator[tuple[int, Float32]]:
        """Each input's index and vector, float32 [length]."""
        async for some in slices(range(len(self._pooled)), VECTORS_AT_ONCE, LOOP):
            for i in some:
                yield i, embedding_of(self._model, self._pooled[i], self._dimensions)

    def similarity(self, one: int, other: int) -> float:
        """The cosine similarity of two inputs' whole vectors."""
        from tidemill.text.pooled import similarity  # numpy, see there

        return similarity(self._pooled[one], self._pooled[other])


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of a request's pairs.

    Attributes:
        values: one per pair.
        prompt_tokens, cached_tokens: usage.
        cut: see `Embedded`.
    """

    values: list[float]
    prompt_tokens: int
    cached_tokens: int
    cut: Sequence[str]


@dataclass(frozen=True, slots=True)
class VectorForm:
    """How the vectors of an answer are written.

    Attributes:
        decimal: as decimal numbers.
        encoded: as bytes, or in base64.
        shorter: what a client can ask for to get a shorter answer, for the error; "": nothing.
    """

    decimal: bool = True
    encoded: bool = False
    shorter: str = ""


DECIMAL = VectorForm()


async def embed(
    context: ServerContext,
    request: Request,
    model: ServedModel,
    asked: EmbedRequest,
    form: VectorForm = DECIMAL,
) -> Embedded:
    """Compute the vectors of a request.

    Args:
        context: the server's.
        request: whose body's memory is released.
        model: that is leased.
        asked: the inputs.
        form: how the vectors will be written.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field, or the engine's error.
        Rejection: 429, the server is overloaded.
    """
    prepared = await prepare_embedding(model, asked, LOOP)
    _prepared(request, prepared)
    length = asked.dimensions or model.info.hidden_size
    run = Vectors(model, prepared, _size(context, asked, length, form))
    request.state.operation, request.state.generation = Operation.EMBED, run
    pooled = await run.run()
    return Embedded(
        run.prompt_tokens, run.cached_tokens, length, prepared.cut, model, pooled, asked.dimensions
    )


async def score_pairs(request: Request, model: ServedModel, asked: ScoreRequest) -> Scored:
    """Compute the scores of a request; see `embed`."""
    prepared = await prepare_scores(model, asked, LOOP)
    _prepared(request, prepared)
    run = Vectors(model, prepared)
    request.state.operation, request.state.generation = Operation.SCORE, run
    values = scores_of(model, asked, await run.run())
    return Scored(values, run.prompt_tokens, run.cached_tokens, prepared.cut)


def _prepared(request: Request, prepared: PreparedInputs) -> None:
    """Release the body's memory, and have a header of the response name the inputs that are cut."""
    request.state.hold.close()
    name_truncated(request, prepared.cut)


def _size(context: ServerContext, asked: EmbedRequest, length: int, form: VectorForm) -> AnswerSize:
    """The size of the answer; raises BAD_REQUEST where it is too much."""
    count, most = len(asked.inputs), context.limits.max_answer_bytes
    size = vectors_size(count, length, decimal=form.decimal, encoded=form.encoded)
    if size.most > most:
        shorter = f", or ask for {form.shorter}" if form.shorter else ""
        raise bad_request(
            asked.param,
            f"{count} vectors of {length} numbers could have {size.most} bytes, and at most "
            f"{most} are sent (max_answer_bytes): send fewer inputs{shorter}",
        )
    return size
