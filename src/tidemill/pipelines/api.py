"""What a pipeline's file sees: the request, and the served models."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tidemill.base.errors import ErrorKind
from tidemill.pipelines.calls import Calls, PendingCall
from tidemill.pipelines.messages import Done, Failed, Part, Start

Messages = Sequence[Mapping[str, Any]]


class BadRequest(Exception):
    """Raise it to answer the client with a 400 and this message."""


class ModelError(Exception):
    """A call of a model failed.

    Attributes:
        kind: what class of thing went wrong, for instance ``bad_request``, ``not_found``,
            ``overloaded``, ``timeout``.
        message: for people.
        param: the field it is about, if there is one.
        call: the call's number.
    """

    def __init__(
        self, kind: str, message: str, param: str | None = None, call: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind = ErrorKind(kind)
        self.message = message
        self.param = param
        self.call = call


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model generated.

    Attributes:
        text: the answer.
        reasoning: the thinking before it.
        tool_calls: as in the chat API's messages.
        finish_reason: ``stop``, ``length`` or ``tool_calls``.
        usage: its tokens.
    """

    text: str
    reasoning: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document of `Model.rerank`: its index, and its relevance (higher is better)."""

    index: int
    score: float


class Request:
    """The request to answer.

    Attributes:
        id: names it in logs.
        model: the pipeline's name, as called.
        messages: the conversation in the chat API's terms; a plain prompt is one user message.
        sampling: the sampling fields that the client sent, as `Model.generate` takes them.
        options: of the deployment file.
        stream: the client reads the answer as it comes.
        seconds: that were left until its deadline when it began.
    """

    def __init__(self, start: Start) -> None:
        self.id = start.request_id
        self.model = start.pipeline
        self.messages = start.messages
        self.sampling = start.sampling
        self.options = start.options
        self.stream = start.stream
        self.seconds = start.seconds

    @property
    def last(self) -> str:
        """The text of the conversation's last message from the user; else empty."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return text_of(message)
        return ""


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text: its content, or the text parts of it."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [p.get("text") for p in parts if isinstance(p, Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


class Models:
    """The served models and pipelines by name: ``models["name"]``.

    Attributes:
        names: every name.
        default: the name of the model that answers requests which name none.
    """

    def __init__(self, start: Start, calls: Calls) -> None:
        self.names = start.names
        self.default = start.default
        self._run = start.run
        self._calls = calls

    def __getitem__(self, name: str) -> Model:
        if name not in self.names:
            served = ", ".join(self.names)
            raise ModelError(
                "not_found", f"models[{name!r}]: no such model is served; there are {served}"
            )
        return Model(name, self._run, self._calls)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Model:
    """One served model or pipeline. Every method raises `ModelError`; cancelling it cancels the
    work in the model's engine."""

    def __init__(self, name: str, run: int, calls: Calls) -> None:
        self.name = name
        self._run = run
        self._calls = calls

    async def generate(self, prompt: Messages | str, /, **fields: Any) -> Answer:
        """Generate an answer and wait for all of it.

        Args:
            prompt: a conversation, or a text to continue.
            fields: sampling (`temperature`, `max_tokens`, `stop`, `seed`, ...), and for
                conversations `tools`, `tool_choice`, `response_format`, `reasoning_effort`, ...,
                as in the chat API.
        """
        call = self._begin("generate", {"prompt": _prompt(prompt), **_fields(fields)})
        return _answer(await _result(call))

    def stream(self, prompt: Messages | str, /, **fields: Any) -> TextStream:
        """The same, as an asynchronous iterator over the answer's text as it comes."""
        return TextStream(self, {"prompt": _prompt(prompt), **_fields(fields)})

    async def embed(
        self,
        texts: Sequence[str] | str,
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> list[array[float]]:
        """A vector (float32) for each text.

        Args:
            texts: the texts; a single one may be a string.
            dimensions: numbers of a vector; None: all.
            prompt_name: the model's own prompt to put before each text.
        """
        inputs = [texts] if isinstance(texts, str) else list(texts)
        if not inputs:
            return []
        fields = {"inputs": inputs, "dimensions": dimensions, "prompt_name": prompt_name}
        result = await _result(self._begin("embed", fields))
        return [array("f", data) for data in result["vectors"]]

    async def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None
    ) -> list[Ranked]:
        """The documents by relevance to a query, best first; equal ones keep their order."""
        if not documents:
            return []
        fields = {"query": query, "documents": list(documents)}
        scores = (await _result(self._begin("rerank", fields)))["scores"]
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[:top_n]
        return [Ranked(i, scores[i]) for i in order]

    def _begin(self, kind: str, fields: dict[str, Any], *, stream: bool = False) -> PendingCall:
        try:
            return self._calls.begin(self._run, kind, self.name, fields, stream=stream)
        except (TypeError, ValueError) as error:
            raise ModelError("bad_request", f"{kind}() of {self.name!r}: {error}") from None


class TextStream:
    """An answer's text as it comes; asynchronous iterator of `Model.stream`.

    Attributes:
        answer: the whole of it, once the iteration has ended; else None.
    """

    def __init__(self, model: Model, fields: dict[str, Any]) -> None:
        self.answer: Answer | None = None
        self._texts = self._run(model, fields)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._texts

    async def aclose(self) -> None:
        """Cancel what still runs."""
        await self._texts.aclose()

    async def _run(self, model: Model, fields: dict[str, Any]) -> AsyncGenerator[str, None]:
        call = model._begin("generate", fields, stream=True)
        try:
            while isinstance(reply := await call.next(), Part):
                yield reply.text
            self.answer = _answer(_checked(reply))
        finally:
            call.drop()


def _prompt(prompt: Messages | str) -> str | list[dict[str, Any]]:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]


def _fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


async def _result(call: PendingCall) -> dict[str, Any]:
    return _checked(await call.next())


def _checked(reply: Part | Done | Failed) -> dict[str, Any]:
    if isinstance(reply, Failed):
        _raise(reply)
    assert isinstance(reply, Done)
    return reply.result


def _raise(failed: Failed) -> NoReturn:
    raise ModelError(failed.kind, failed.message, failed.param, failed.call)


def _answer(result: Mapping[str, Any]) -> Answer:
    return Answer(
        result["text"],
        result["reasoning"],
        tuple(result["tool_calls"]),
        result["finish_reason"],
        Usage(*result["usage"]),
    )
