"""POST /v2/embed and /v1/embed."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.base.ids import new_id
from tidemill.generation.request import Cut, EmbedRequest
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import Dialect, Endpoint
from tidemill.server.dialects.fields import ANY, Fields, Neutral
from tidemill.server.dialects.members import Body, InvalidField
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.dialects.vectors import VectorForm, embed
from tidemill.server.errors import Problem
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import Document, PiecedResponse
from tidemill.text.vectors import side_prompts


class CoherePart(Body, kw_only=True):
    """A part of an input."""

    type: Literal["text"]
    text: str


class CohereInput(Body, kw_only=True):
    """An input in parts, which are put together."""

    content: list[CoherePart]


class CohereEmbed(Body, kw_only=True):
    """Body of POST /v1/embed and /v2/embed: `texts` or `inputs`.

    Attributes:
        input_type: search_query and search_document pick the model's prompts of these names.
        embedding_types: /v1/embed without them answers a plain list.
        truncate: the side that is cut off a text that is too long (default END); NONE: that is an
            error.
        max_tokens: tokens of a text; absent: as many as the model takes.
    """

    known: ClassVar[Fields] = {
        "images": Neutral(([],), feature="images"),
        "priority": Neutral((0,), feature="priorities here", instead="give the key a weight"),
        "client_name": Neutral(kinds=(ANY,)),
    }

    model: str | None = None
    texts: list[str] | None = None
    inputs: list[CohereInput] | None = None
    input_type: (
        Literal["search_query", "search_document", "classification", "clustering"] | None
    ) = None
    embedding_types: list[Literal["float", "base64"]] | None = None
    output_dimension: int | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: int | None = None

    def finalize(self) -> None:
        """Raise unless there is one kind of input."""
        if (self.texts is None) == (self.inputs is None):
            raise InvalidField("invalid_value", "send either texts or inputs", "texts")


_CUTS = {"NONE": None, "START": Cut.START, "END": Cut.END}


async def embed_v2(context: ServerContext, request: Request) -> Response:
    """A vector for each text."""
    return await _embed(context, request, 2)


async def embed_v1(context: ServerContext, request: Request) -> Response:
    """A vector for each text, in the older form."""
    return await _embed(context, request, 1)


async def _embed(context: ServerContext, request: Request, version: int) -> Response:
    arrival = monotonic()
    body = await read_model(CohereEmbed, request, context.limits)
    field = "inputs" if body.texts is None else "texts"
    texts = body.texts
    if texts is None:
        texts = ["".join(part.text for part in one.content) for one in body.inputs or ()]
    most = context.limits.max_inputs
    if not 1 <= len(texts) <= most:
        raise bad_request(field, f"{field} must hold 1 to {most} texts, got {len(texts)}")
    names: dict[str, str] = request.state.sent_as
    names["dimensions"] = "output_dimension"
    asked = EmbedRequest(
        inputs=texts,
        dimensions=body.output_dimension,
        cut=_CUTS[body.truncate],
        context=body.max_tokens,
        context_param="max_tokens",
        param=field,
        caller=caller_of(request, None, arrival),
        arrival=arrival,
    )
    kinds = body.embedding_types

    async def work(model: ServedModel) -> Response:
        prompt = _prompt_of(model, body.input_type)
        lists = {kind: bytearray(b"[") for kind in dict.fromkeys(kinds or ["float"])}
        shorter = 'embedding_types ["base64"]' if "float" in lists else ""
        form = VectorForm("float" in lists, "base64" in lists, shorter)
        run = await embed(context, request, model, replace(asked, prompt_name=prompt), form)
        async for i, vector in run.embeddings():
            for kind, data in lists.items():
                plain = vector.astype("<f4")
                encoded = base64.b64encode(plain.tobytes()).decode()
                value = plain.tolist() if kind == "float" else encoded
                data += (b"," if i else b"") + msgspec.json.encode(value)
        placed = Document()
        values = {kind: placed.place([data, b"]"]) for kind, data in lists.items()}
        plain_list = version == 1 and kinds is None
        warned = {"warnings": [_truncated(run.cut, body.truncate)]} if run.cut else {}
        answer: dict[str, Any] = {
            "id": new_id("embed"),
            "embeddings": values["float"] if plain_list else values,
            "texts": texts,
            "meta": {
                "api_version": {"version": str(version)},
                "billed_units": {"input_tokens": run.prompt_tokens},
                **warned,
            },
        }
        kind = "embeddings_floats" if plain_list else "embeddings_by_type"
        answer |= {"response_type": kind} if version == 1 else {}
        return PiecedResponse(placed.encode(answer))

    return ModelAnswer(context, request, body.model, work)


def _truncated(names: Sequence[str], side: str) -> str:
    return f"longer than what is read, and cut (truncate {side}): {', '.join(names)}"


def _prompt_of(model: ServedModel, input_type: str | None) -> str | None:
    """The model's prompt for a type of input; None: its default."""
    query, document = side_prompts(model.info.vectors)
    return {"search_query": query, "search_document": document}.get(input_type or "")


ERROR_SCHEMA = {
    "type": "object",
    "required": ["message"],
    "properties": {"message": {"type": "string"}},
}


def error_body(problem: Problem) -> bytes:
    """Cohere's shape of an error: `{"message"}`; the message names the field."""
    return msgspec.json.encode({"message": problem.whole_message})


COHERE = Dialect(
    "cohere",
    (
        Endpoint("POST", "/v2/embed", embed_v2, CohereEmbed),
        Endpoint("POST", "/v1/embed", embed_v1, CohereEmbed),
    ),
    error_body,
    error_schema=ERROR_SCHEMA,
)
