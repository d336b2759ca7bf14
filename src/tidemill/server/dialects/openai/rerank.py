"""POST /v1/rerank, /rerank (Cohere's and Jina's format) and /v1/score: relevance of text pairs.

A cross-encoder reads both texts as one input. With any other model each text is embedded, and the
score is the cosine similarity of the two vectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic, wall
from tidemill.base.errors import bad_request
from tidemill.base.ids import new_id
from tidemill.contract.resolve import check_input
from tidemill.server.access.caller import caller_of
from tidemill.server.admission.control import Caller
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.completions import encode_source
from tidemill.server.dialects.openai.embeddings import usage_of
from tidemill.server.dialects.openai.models import json_response
from tidemill.server.host.vectors import VectorAnswer, Vectors
from tidemill.text.vectors import (
    Input,
    embedding_pooling,
    pair_input,
    prompted,
    score_pooling,
    side_prompts,
)

Pair = tuple[int, int]


class _Scores:
    """Scores of pairs of texts.

    Args:
        context: the server's.
        firsts, seconds: the texts.
        pairs: indices into them.
    """

    def __init__(
        self,
        context: ServerContext,
        firsts: Sequence[str],
        seconds: Sequence[str],
        pairs: Sequence[Pair],
    ) -> None:
        self._context = context
        self._texts = (firsts, seconds)
        self._pairs = pairs
        self._cross = context.vectors.head == "score"

    async def prepare(self, names: tuple[str, str], arrival: float, caller: Caller) -> Vectors:
        """Tokenize all inputs.

        Args:
            names: of the two fields with the texts, for errors.
        """
        context = self._context
        if self._cross:
            pooling = score_pooling(context.vectors)
            inputs = await self._joined(names)
        else:
            pooling = embedding_pooling(context.vectors)
            inputs = await self._apart(names)
        return Vectors(context, inputs, pooling, arrival=arrival, caller=caller)

    async def _joined(self, names: tuple[str, str]) -> list[Input]:
        context, (firsts, seconds) = self._context, self._texts
        found = []
        for i, j in self._pairs:
            made = await asyncio.to_thread(
                pair_input, context.tokenizer, context.template, context.vectors, firsts[i],
                seconds[j],
            )  # fmt: skip
            name = names[1] if len(seconds) == 1 else f"{names[1]}[{j}]"
            check_input(len(made.token_ids), context.max_input, param=name)
            found.append(made)
        return found

    async def _apart(self, names: tuple[str, str]) -> list[Input]:
        found = []
        sides = zip(self._texts, names, side_prompts(self._context.vectors), strict=True)
        for texts, name, prompt in sides:
            for index, text in enumerate(texts):
                param = name if len(texts) == 1 else f"{name}[{index}]"
                whole = prompted(text, self._context.vectors, prompt) if text else text
                ids = await encode_source(self._context, whole, param, output_tokens=0)
                found.append(Input(ids))
        return found

    def of(self, found: Sequence[bytes]) -> list[float]:
        """The scores of the pairs, from the pooled outputs of the engine."""
        from tidemill.text.pooled import finish_score, similarity  # numpy, see there

        if self._cross:
            return [finish_score(pooled, self._context.vectors) for pooled in found]
        count = len(self._texts[0])
        return [similarity(found[i], found[count + j]) for i, j in self._pairs]


async def rerank(context: ServerContext, request: Request) -> Response:
    """Documents ordered by relevance to a query."""
    arrival = monotonic()
    body = await read_model(schema.RerankRequest, request, context.limits, bare=True)
    context.check_model(body.model)
    caller = caller_of(request, body.timeout, arrival, cache_salt=body.cache_salt)
    documents = [d if isinstance(d, str) else d.text for d in body.documents]
    _check_count("documents", len(documents), context)
    if body.top_n is not None and body.top_n < 1:
        raise bad_request("top_n", f"top_n must be at least 1, got {body.top_n}")
    scores = _Scores(context, [body.query], documents, [(0, j) for j in range(len(documents))])
    run = await scores.prepare(("query", "documents"), arrival, caller)

    async def work() -> Response:
        values = scores.of(await run.run())
        # Equal scores keep the order of the request.
        order = sorted(range(len(values)), key=lambda i: -values[i])[: body.top_n]
        results: list[dict[str, Any]] = []
        for index in order:
            result: dict[str, Any] = {"index": index, "relevance_score": values[index]}
            if body.return_documents:
                result["document"] = {"text": documents[index]}
            results.append(result)
        return json_response(
            {
                "id": new_id("rerank"),
                "model": context.info.model,
                "results": results,
                "usage": usage_of(run),
            }
        )

    return VectorAnswer(work, request_id=request.state.request_id)


async def score(context: ServerContext, request: Request) -> Response:
    """Relevance scores of text pairs: one text with each of several, or pair by pair."""
    arrival = monotonic()
    body = await read_model(schema.ScoreRequest, request, context.limits, bare=True)
    context.check_model(body.model)
    caller = caller_of(request, body.timeout, arrival, cache_salt=body.cache_salt)
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
    pairs = [(0 if len(firsts) == 1 else j, j) for j in range(len(seconds))]
    scores = _Scores(context, firsts, seconds, pairs)
    run = await scores.prepare(("text_1", "text_2"), arrival, caller)

    async def work() -> Response:
        values = scores.of(await run.run())
        data = [{"index": i, "object": "score", "score": v} for i, v in enumerate(values)]
        return json_response(
            {
                "id": new_id("score"),
                "object": "list",
                "created": int(wall()),
                "model": context.info.model,
                "data": data,
                "usage": usage_of(run),
            }
        )

    return VectorAnswer(work, request_id=request.state.request_id)


def _check_count(name: str, count: int, context: ServerContext) -> None:
    most = context.limits.max_inputs
    if not 1 <= count <= most:
        raise bad_request(name, f"{name} must hold 1 to {most} texts, got {count}")
