"""Request bodies of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from tidemill.server.dialects.fields import Alias, Fields
from tidemill.server.dialects.keep_alive import KeepAlive
from tidemill.server.dialects.members import (
    Body,
    InvalidField,
    checked,
    documented,
    wrong_type,
    wrong_value,
)
from tidemill.server.dialects.ollama import neutral

LEVELS = ("low", "medium", "high", "max")
"""Of `think`."""


def _check_stop(value: Any) -> None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise wrong_type("expected a string or a list of strings")


def _check_input(value: Any) -> None:
    if isinstance(value, str):
        return
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise wrong_type("expected a string or a list of strings")


def _check_think(value: Any) -> None:
    if not isinstance(value, bool) and value not in LEVELS:
        raise wrong_value(f"expected true, false or one of {', '.join(map(repr, LEVELS))}")


def _check_format(value: Any) -> None:
    if value != "json" and not isinstance(value, dict):
        raise wrong_value('expected "json" or a JSON schema, an object')


_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_TEXTS: dict[str, Any] = {"anyOf": [{"type": "string"}, _STRINGS, {"type": "null"}]}

Texts = Annotated[Any, checked(_check_stop, _TEXTS)]
Input = Annotated[Any, checked(_check_input, {"anyOf": [{"type": "string"}, _STRINGS]})]
Think = Annotated[
    Any, checked(_check_think, {"anyOf": [{"type": "boolean"}, {"enum": [*LEVELS, None]}]})
]
AnswerFormat = Annotated[
    Any, checked(_check_format, {"anyOf": [{"enum": ["json", "", None]}, {"type": "object"}]})
]
_TOOLS = documented({"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]})


class OllamaOptions(Body, kw_only=True):
    """`options` of a request.

    Attributes:
        num_ctx: tokens of prompt and answer together, up to what the model is served with.
        num_predict: upper bound of the answer; where the context has less room, it ends it.
        repeat_last_n: tokens that the penalties look at; -1 (all) where it is left out, 0: none.
    """

    known: ClassVar[Fields] = neutral.OPTIONS

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    num_ctx: int | None = None
    stop: Texts = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    typical_p: float | None = None


class CalledFunction(Body, kw_only=True):
    """The function of a call, and its arguments as an object."""

    known: ClassVar[Fields] = neutral.CALLED

    name: str
    arguments: dict[str, Any] | None = None


class OllamaCall(Body, kw_only=True):
    """A call of a tool, as the assistant made it."""

    known: ClassVar[Fields] = neutral.CALL

    function: CalledFunction
    id: str | None = None


class OllamaMessage(Body, kw_only=True):
    """One turn of a conversation.

    Attributes:
        tool_name, tool_call_id: of a tool's result: whose it is. Without an id it belongs to the
            first call of that name that has no result yet; without either to the first call.
    """

    known: ClassVar[Fields] = neutral.MESSAGE

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaGeneration(Body, kw_only=True):
    """Fields that chat and generate share.

    Attributes:
        stream: true where it is absent, as in Ollama.
        truncate: true: the oldest messages are left out where the conversation does not fit, and
            the answer says which; else such a conversation is an error.
    """

    known: ClassVar[Fields] = neutral.GENERATION

    model: str | None = None
    stream: bool | None = None
    format: AnswerFormat = None
    options: OllamaOptions | None = None
    think: Think = None
    truncate: bool | None = None
    keep_alive: KeepAlive = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def finalize(self) -> None:
        if self.top_logprobs is not None and not self.logprobs:
            invalid = wrong_value("needs logprobs to be true")
            invalid.path = "top_logprobs"
            raise invalid

    @property
    def streamed(self) -> bool:
        """The answer is a stream."""
        return self.stream is not False


class OllamaChat(OllamaGeneration, kw_only=True):
    """Body of POST /api/chat."""

    known: ClassVar[Fields] = neutral.CHAT

    messages: list[OllamaMessage] | None = None
    tools: Annotated[Any, _TOOLS] = None


class OllamaGenerate(OllamaGeneration, kw_only=True):
    """Body of POST /api/generate.

    Attributes:
        raw: the prompt is the model's whole input, without its chat template.
        suffix: what follows a gap that the answer fills, by the model's own marks.
    """

    known: ClassVar[Fields] = neutral.GENERATE

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None


class OllamaEmbed(Body, kw_only=True):
    """Body of POST /api/embed."""

    model: str | None = None
    input: Input
    dimensions: int | None = None
    truncate: bool | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None


class OllamaEmbeddings(Body, kw_only=True):
    """Body of POST /api/embeddings."""

    model: str | None = None
    prompt: str | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None


class OllamaShow(Body, kw_only=True):
    """Body of POST /api/show."""

    known: ClassVar[Fields] = neutral.SHOW

    model: Annotated[str, Meta(min_length=1)]
    verbose: bool | None = None


class OllamaPull(Body, kw_only=True):
    """Body of POST /api/pull."""

    known: ClassVar[Fields] = neutral.PULL

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None


class OllamaCopy(Body, kw_only=True):
    """Body of POST /api/copy."""

    source: Annotated[str, Meta(min_length=1)]
    destination: Annotated[str, Meta(min_length=1)]


class OllamaDelete(Body, kw_only=True):
    """Body of DELETE /api/delete."""

    known: ClassVar[Fields] = {"name": Alias("model")}

    model: Annotated[str, Meta(min_length=1)]


class OllamaPush(Body, kw_only=True):
    """Body of POST /api/push."""

    known: ClassVar[Fields] = neutral.PULL

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None


class OllamaCreate(Body, kw_only=True):
    """Body of POST /api/create: `from` or `files`.

    Attributes:
        base: `from`: a name, or a source as of /api/pull.
        files: names in the model -> digests of files that were sent to /api/blobs.
        template: in Jinja's syntax.
        parameters: as in a Modelfile.
        quantize: the type that the weights are written in: q8_0, q4_0, q4_K, q6_K.
        adapters: of a LoRA, names -> digests of files that were sent to /api/blobs:
            adapter_config.json and adapter_model.safetensors, or GGUF files.
    """

    known: ClassVar[Fields] = neutral.CREATE

    model: Annotated[str, Meta(min_length=1)]
    base: Annotated[str, Meta(min_length=1)] | None = None
    files: dict[str, str] | None = None
    system: str | None = None
    template: str | None = None
    parameters: dict[str, Any] | None = None
    messages: list[OllamaMessage] | None = None
    license: str | list[str] | None = None
    quantize: Annotated[str, Meta(pattern="^[A-Za-z0-9_]{1,32}$")] | None = None
    adapters: dict[str, str] | None = None
    stream: bool | None = None

    def finalize(self) -> None:
        """Raise unless there is one source."""
        if (self.base is None) == (not self.files):
            raise InvalidField("invalid_value", "send either from or files", "from")
