"""POST /v1/rerank, /rerank (Cohere's and Jina's format) and /v1/score: relevance of text pairs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic, wall
from tidemill.base.errors import bad_request
from tidemill.base.ids import new_id
from tidemill.generation.request import ScoreRequest
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.keep_alive import keep_alive_of
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.embeddings import truncated, usage_of
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.dialects.vectors import score_pairs
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import json_response

# The members of an answer, from the model's name and the scores of the pairs.
Document = Callable[[str, list[float]], dict[str, Any]]


def _scored(
    request: Request, asked: ScoreRequest, document: Document
) -> Callable[[ServedModel], Awaitable[Response]]:
    async def work(model: ServedModel) -> Response:
        run = await score_pairs(request, model, asked)
        answer = document(model.name, run.values)
        return json_response({**answer, "usage": usage_of(run), **truncated(run)})

    return work


async def rerank(context: ServerContext, request: Request) -> Response:
    """Documents ordered by relevance to a query."""
    arrival = monotonic()
    body = await read_model(schema.RerankRequest, request, context.limits, bare=True)
    find_model(context, request, body.model)  # a wrong name is the first error
    caller = caller_of(request, body.timeout, arrival, cache_salt=body.cache_salt, user=body.user)
    field = "documents" if body.texts is None else "texts"
    documents = [d if isinstance(d, str) else d.text for d in body.documents or body.texts or ()]
    _check_count(field, len(documents), context)
    if body.top_n is not None and body.top_n < 1:
        raise bad_request("top_n", f"top_n must be at least 1, got {body.top_n}")
    if body.max_tokens_per_doc is not None and body.max_tokens_per_doc < 1:
        raise bad_request(
            "max_tokens_per_doc",
            f"max_tokens_per_doc must be at least 1, got {body.max_tokens_per_doc}",
        )
    asked = ScoreRequest(
        firsts=[body.query],
        seconds=documents,
        pairs=[(0, j) for j in range(len(documents))],
        params=("query", field),
        cut=body.cut,
        context=body.context,
        second_tokens=body.max_tokens_per_doc,
        context_param="truncate_prompt_tokens",
        caller=caller,
        arrival=arrival,
    )

    def document(model: str, values: list[float]) -> dict[str, Any]:
        # Equal scores keep the order of the request.
        order = sorted(range(len(values)), key=lambda i: -values[i])[: body.top_n]
        results: list[dict[str, Any]] = []
        for index in order:
            result: dict[str, Any] = {"index": index, "relevance_score": values[index]}
            if body.return_documents:
                result["document"] = {"text": documents[index]}
            results.append(result)
        return {"id": new_id("rerank"), "model": model, "results": results}

    async def in_tei_form(model: ServedModel) -> Response:
        values = (await score_pairs(request, model, asked)).values
        order = sorted(range(len(values)), key=lambda i: -values[i])
        ranks: list[dict[str, Any]] = [{"index": i, "score": values[i]} for i in order]
        if body.return_text:
            ranks = [{**rank, "text": documents[i]} for rank, i in zip(ranks, order, strict=True)]
        return json_response(ranks)

    keep_alive = keep_alive_of(body.keep_alive)
    work = in_tei_form if body.texts is not None else _scored(request, asked, document)
    return ModelAnswer(context, request, body.model, work, keep_alive)


async def score(context: ServerContext, request: Request) -> Response:
    """Relevance scores of text pairs: one text with each of several, or pair by pair."""
    arrival = monotonic()
    body = await read_model(schema.ScoreRequest, request, context.limits, bare=True)
    find_model(context, request, body.model)  # a wrong name is the first error
    caller = caller_of(request, body.timeout, arrival, cache_salt=body.cache_salt, user=body.user)
    firsts = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    seconds = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    for name, texts in (("text_1", firsts), ("text_2", seconds)):
        _check_count(name, len(texts), context)
    if len(firsts) not in (1, len(seconds)):
        raise bad_request(
            "text_1",
            f"text_1 has {len(firsts)} texts and text_2 {len(seconds)}; text_1 is one text, or as "
            "many as text_2",
        )
    asked = ScoreRequest(
        firsts=firsts,
        seconds=seconds,
        pairs=[(0 if len(firsts) == 1 else j, j) for j in range(len(seconds))],
        params=("text_1", "text_2"),
        cut=body.cut,
        context=body.context,
        context_param="truncate_prompt_tokens",
        caller=caller,
        arrival=arrival,
    )

    def document(model: str, values: list[float]) -> dict[str, Any]:
        data = [{"index": i, "object": "score", "score": v} for i, v in enumerate(values)]
        return {
            "id": new_id("score"),
            "object": "list",
            "created": int(wall()),
            "model": model,
            "data": data,
        }

    keep_alive = keep_alive_of(body.keep_alive)
    work = _scored(request, asked, document)
    return ModelAnswer(context, request, body.model, work, keep_alive)


def _check_count(name: str, count: int, context: ServerContext) -> None:
    most = context.limits.max_inputs
    if not 1 <= count <= most:
        raise bad_request(name, f"{name} must hold 1 to {most} texts, got {count}")
