"""The calls of a pipeline's file: each is a request to a served model, for the caller's account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.base.ids import new_call_id
from tidemill.base.log import get_logger
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import Caller
from tidemill.generation.choices import ChoiceDelta
from tidemill.generation.request import EmbedRequest, GenerateRequest, Names, ScoreRequest
from tidemill.generation.vectors import (
    embedding_of,
    prepare_embedding,
    prepare_scores,
    scores_of,
)
from tidemill.pipelines.messages import Call, Done, Failed, Part
from tidemill.server.errors import Rejection, problem_of
from tidemill.server.host.begin import begin_generation
from tidemill.server.host.host import ModelHost
from tidemill.server.host.pace import LOOP
from tidemill.server.host.pipelines.process import Reply
from tidemill.server.host.pipelines.request import tuples
from tidemill.server.host.served import ServedModel, check_is_model
from tidemill.server.host.vectors import Vectors
from tidemill.telemetry.trace import Trace
from tidemill.text.answering import ANSWER_FIELDS, OutputRequest

log = get_logger(__name__)

MAX_DEPTH = 8
"""Pipelines that call one another."""

MAX_INPUTS = 2048
"""Texts of one call of `embed` or `rerank`."""

_SAMPLING = frozenset(SamplingParams.__struct_fields__) - {"n", "logprobs", "prompt_logprobs"}
_LISTS = ("stop", "stop_token_ids")


@dataclass(slots=True)
class Usage:
    """Tokens of the calls of one run, which its answer reports."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0


Spent = Mapping[str, tuple[int, int, int]]
"""Model -> prompt tokens, those of them that were cached, and generated tokens."""


class Spender(Protocol):
    """A call: a generation, or vectors."""

    trace: Trace | None

    @property
    def spent(self) -> Spent:
        """So far."""


def sum_of(parts: Iterable[Spent]) -> dict[str, tuple[int, int, int]]:
    """The sum by model."""
    found: dict[str, tuple[int, int, int]] = {}
    for part in parts:
        for model, tokens in part.items():
            before = found.get(model, (0, 0, 0))
            found[model] = before[0] + tokens[0], before[1] + tokens[1], before[2] + tokens[2]
    return found


@dataclass(frozen=True, slots=True)
class Calling:
    """Answers the calls of one run.

    Attributes:
        host: the models.
        request_id: of the run; the calls' ids are derived from it.
        caller: of the run, with its deadline.
        callers: the pipelines on the way here, this one last.
        max_answer_bytes: bound of one answer.
        usage: counted here.
        errors: why calls failed, by number.
        running: the calls that have not ended, by number.
        ended: what the others spent.
        trace: of the run, which lists those of the calls; None: nobody asks for it.
    """

    host: ModelHost
    request_id: str
    caller: Caller
    callers: Sequence[str]
    max_answer_bytes: int
    usage: Usage = field(default_factory=Usage)
    errors: dict[int, Exception] = field(default_factory=dict)
    running: dict[int, Spender] = field(default_factory=dict)
    ended: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    trace: Trace | None = None

    @property
    def spent(self) -> Spent:
        """Tokens by the model whose price they have."""
        return sum_of((self.ended, *(call.spent for call in self.running.values())))

    def _begin(self, call: Call, model: ServedModel, work: Spender) -> None:
        self.running[call.call] = work
        if self.trace is not None and work.trace is not None:
            self.trace.called(model.name, work.trace)

    def _end(self, call: Call) -> None:
        ended = self.running.pop(call.call, None)
        if ended is not None:
            self.ended.update(sum_of((self.ended, ended.spent)))

    async def answer(self, call: Call, reply: Reply) -> None:
        """Answer one call; see `pipeline_process.Answer`."""
        try:
            async with self.host.lease(call.model, caller=self.caller, within=True) as model:
                self._check_circle(model)
                result = await _KINDS[call.kind](self, model, call, reply)
            await reply(Done(call.call, result))
        except (TidemillError, Rejection) as error:
            self.errors[call.call] = error
            await reply(_failed(call, error))
        except Exception as error:
            log.exception("request %s: a call of %s failed", self.request_id, call.model)
            self.errors[call.call] = error
            await reply(Failed(call.call, ErrorKind.INTERNAL, "internal error; see the log"))
        finally:
            self._end(call)

    def _check_circle(self, model: ServedModel) -> None:
        if model.pipeline is None:
            return
        way = " > ".join((*self.callers, model.name))
        if model.name in self.callers:
            message = f"pipelines call one another in a circle: {way}"
        elif len(self.callers) >= MAX_DEPTH:
            message = f"at most {MAX_DEPTH} pipelines call one another: {way}"
        else:
            return
        log.error("request %s: %s", self.request_id, message)
        raise bad_request("model", message)

    async def _generate(self, model: ServedModel, call: Call, reply: Reply) -> dict[str, Any]:
        asked = self._asked(call.fields)
        generation = await begin_generation(
            model,
            f"{self.request_id}-c{call.call}",
            asked,
            max_answer_bytes=self.max_answer_bytes,
            streamed=call.stream,
            callers=self.callers,
        )
        self._begin(call, model, generation)
        parts = _Parts()
        before = Usage()
        try:
            async with aclosing(generation.steps()) as steps:
                async for deltas in steps:
                    for delta in deltas:
                        parts.add(delta)
                        if call.stream and delta.text:
                            await reply(Part(call.call, delta.text))
                    before = self._count(generation, before)
        finally:
            self._count(generation, before)
        used = generation.prompt_tokens, generation.completion_tokens, generation.cached_tokens
        return {**parts.document(), "usage": used}

    def _count(self, generation: Any, before: Usage) -> Usage:
        """Add what a generation used since `before`."""
        now = Usage(
            generation.prompt_tokens,
            generation.completion_tokens,
            generation.reasoning_tokens,
            generation.cached_tokens,
        )
        usage = self.usage
        usage.prompt += now.prompt - before.prompt
        usage.completion += now.completion - before.completion
        usage.reasoning += now.reasoning - before.reasoning
        usage.cached += now.cached - before.cached
        return now

    def _asked(self, fields: Mapping[str, Any]) -> GenerateRequest:
        prompt = fields["prompt"]
        rest = {name: value for name, value in fields.items() if name != "prompt"}
        for name in rest:
            if name not in _SAMPLING and name not in ANSWER_FIELDS:
                raise bad_request(name, f"generate() takes no {name}")
        sampling = tuples({k: v for k, v in rest.items() if k in _SAMPLING}, _LISTS)
        is_text = isinstance(prompt, str)
        return GenerateRequest(
            messages=None if is_text else prompt,
            prompts=[prompt] if is_text else (),
            sampling=SamplingParams(**sampling),
            output=OutputRequest.read({k: v for k, v in rest.items() if k in ANSWER_FIELDS}),
            caller=self.caller,
            arrival=monotonic(),
            names=Names("prompt" if is_text else "messages"),
        )

    async def _embed(self, model: ServedModel, call: Call, reply: Reply) -> dict[str, Any]:
        check_is_model(model)
        inputs, dimensions = call.fields["inputs"], call.fields["dimensions"]
        _check_texts("texts", inputs)
        asked = EmbedRequest(
            inputs=inputs,
            dimensions=dimensions,
            prompt_name=call.fields["prompt_name"],
            param="texts",
            caller=self.caller,
            arrival=monotonic(),
        )
        run = Vectors(model, await prepare_embedding(model, asked, LOOP))
        self._begin(call, model, run)
        found = await run.run()
        self.usage.prompt += run.prompt_tokens
        self.usage.cached += run.cached_tokens
        vectors = []
        for pooled in found:
            vectors.append(embedding_of(model, pooled, dimensions).tobytes())
            await LOOP.pause()
        return {"vectors": vectors}

    async def _rerank(self, model: ServedModel, call: Call, reply: Reply) -> dict[str, Any]:
        check_is_model(model)
        query, documents = call.fields["query"], call.fields["documents"]
        _check_texts("query", [query])
        _check_texts("documents", documents)
        asked = ScoreRequest(
            firsts=[query],
            seconds=documents,
            pairs=[(0, j) for j in range(len(documents))],
            params=("query", "documents"),
            caller=self.caller,
            arrival=monotonic(),
        )
        run = Vectors(model, await prepare_scores(model, asked, LOOP))
        self._begin(call, model, run)
        scores = scores_of(model, asked, await run.run())
        self.usage.prompt += run.prompt_tokens
        self.usage.cached += run.cached_tokens
        return {"scores": [float(score) for score in scores]}


_KINDS = {
    "generate": Calling._generate,
    "embed": Calling._embed,
    "rerank": Calling._rerank,
}


class _Parts:
    """A whole answer from its deltas."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, list[str]]] = []
        self._finish = "stop"

    def add(self, delta: ChoiceDelta) -> None:
        self._text.append(delta.text)
        self._reasoning.append(delta.reasoning)
        for part in delta.calls:
            if part.name is not None:
                self._calls.append((part.name, []))
            self._calls[part.index][1].append(part.arguments)
        self._finish = delta.finish or self._finish

    def document(self) -> dict[str, Any]:
        """Members of `pipelines.api.Answer`."""
        calls = [
            {
                "id": new_call_id(),
                "type": "function",
                "function": {"name": name, "arguments": "".join(arguments)},
            }
            for name, arguments in self._calls
        ]
        return {
            "text": "".join(self._text),
            "reasoning": "".join(self._reasoning),
            "tool_calls": calls,
            "finish_reason": self._finish,
        }


def _check_texts(name: str, texts: Any) -> None:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise bad_request(name, f"{name} must be texts (str)")
    if len(texts) > MAX_INPUTS:
        raise bad_request(name, f"{name}: at most {MAX_INPUTS} at once, got {len(texts)}")


def _failed(call: Call, error: TidemillError | Rejection) -> Failed:
    if isinstance(error, TidemillError):
        return Failed(call.call, error.kind, error.message, error.param)
    problem = problem_of(error, "")
    kind = _KIND_OF_STATUS.get(problem.status, ErrorKind.BAD_REQUEST)
    return Failed(call.call, kind, problem.message, problem.param)


_KIND_OF_STATUS = {
    404: ErrorKind.NOT_FOUND,
    408: ErrorKind.TIMEOUT,
    429: ErrorKind.OVERLOADED,
    500: ErrorKind.INTERNAL,
    503: ErrorKind.UNAVAILABLE,
}
