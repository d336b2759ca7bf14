"""POST /embed and /similarity (TEI's rerank is `server.dialects.openai.rerank`)."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.generation.request import Cut, EmbedRequest
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import Dialect, Endpoint
from tidemill.server.dialects.fields import Fields, Neutral
from tidemill.server.dialects.members import Body
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.dialects.vectors import embed
from tidemill.server.errors import Problem
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import PiecedResponse, json_response
from tidemill.server.transport.sink import Piece

Direction = Literal["Left", "Right", "left", "right"]
"""The side of a text that `truncate` cuts off."""


class TeiEmbed(Body, kw_only=True):
    """Body of POST /embed."""

    known: ClassVar[Fields] = {
        "normalize": Neutral((True,), feature="vectors of another length than the model's"),
    }

    inputs: str | list[str]
    prompt_name: str | None = None
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    dimensions: int | None = None
    model: str | None = None


class TeiSimilarityParameters(Body, kw_only=True):
    """Parameters of POST /similarity."""

    prompt_name: str | None = None
    truncate: bool | None = None
    truncation_direction: Direction | None = None


class TeiSentences(Body, kw_only=True):
    """One text, and others that it is compared with."""

    source_sentence: str
    sentences: list[str]


class TeiSimilarity(Body, kw_only=True):
    """Body of POST /similarity."""

    inputs: TeiSentences
    parameters: TeiSimilarityParameters | None = None
    model: str | None = None


async def embed_texts(context: ServerContext, request: Request) -> Response:
    """A vector for each text."""
    arrival = monotonic()
    body = await read_model(TeiEmbed, request, context.limits)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    _check_count(context, "inputs", texts)
    asked = EmbedRequest(
        inputs=texts,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
        cut=_cut(body),
        param="inputs",
        caller=caller_of(request, None, arrival),
        arrival=arrival,
    )

    async def work(model: ServedModel) -> Response:
        run = await embed(context, request, model, asked)
        pieces: list[Piece] = []
        async for _, vector in run.embeddings():
            pieces += (b"," if pieces else b"[", msgspec.json.encode(vector.tolist()))
        return PiecedResponse([*pieces, b"]"])

    return ModelAnswer(context, request, body.model, work)


async def similarity(context: ServerContext, request: Request) -> Response:
    """The cosine similarity of a text with each of several."""
    arrival = monotonic()
    body = await read_model(TeiSimilarity, request, context.limits)
    sentences = body.inputs.sentences
    _check_count(context, "inputs.sentences", sentences)
    parameters = body.parameters or TeiSimilarityParameters()
    asked = EmbedRequest(
        inputs=[body.inputs.source_sentence, *sentences],
        prompt_name=parameters.prompt_name,
        cut=_cut(parameters),
        param="inputs",
        caller=caller_of(request, None, arrival),
        arrival=arrival,
    )

    async def work(model: ServedModel) -> Response:
        run = await embed(context, request, model, asked)
        return json_response([run.similarity(0, i) for i in range(1, len(sentences) + 1)])

    return ModelAnswer(context, request, body.model, work)


def _cut(body: TeiEmbed | TeiSimilarityParameters) -> Cut | None:
    """What is cut off texts that are too long; None: that is an error."""
    if not body.truncate:
        return None
    return Cut.START if body.truncation_direction in ("Left", "left") else Cut.END


def _check_count(context: ServerContext, name: str, texts: list[str]) -> None:
    most = context.limits.max_inputs
    if not 1 <= len(texts) <= most:
        raise bad_request(name, f"{name} must hold 1 to {most} texts, got {len(texts)}")


ERROR_SCHEMA = {
    "type": "object",
    "required": ["error", "error_type"],
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
}


def error_body(problem: Problem) -> bytes:
    """TEI's shape of an error: `{"error", "error_type"}`; the message names the field."""
    kind = "backend" if problem.status >= 500 else "validation"
    kind = "overloaded" if problem.status in (429, 503) else kind
    return msgspec.json.encode({"error": problem.whole_message, "error_type": kind})


TEI = Dialect(
    "tei",
    (
        Endpoint("POST", "/embed", embed_texts, TeiEmbed),
        Endpoint("POST", "/similarity", similarity, TeiSimilarity),
    ),
    error_body,
    error_schema=ERROR_SCHEMA,
    prefixes=("/embed_",),
    not_served={"/embed_sparse": "/embed", "/embed_all": "/embed", "/predict": "/v1/score"},
)
