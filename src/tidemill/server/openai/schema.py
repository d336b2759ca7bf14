"""Request bodies of the OpenAI dialect, with Tidemill's extensions.

Types are strict: no string is read as a number, no true as 1. Unknown fields are errors. Ranges are
not checked here but where sampling parameters are (`contract.sampling`), once for every entrance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tidemill.server.openai import described
from tidemill.text.thinking import EFFORTS

INT32 = 2**31

JsonSchema = dict[str, Any]


def _type_error(message: str) -> PydanticCustomError:
    # Braces would be read as the template's own.
    return PydanticCustomError("invalid_type", "{reason}", {"reason": message})


def _unsupported(message: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{reason}", {"reason": message})


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_list_of(value: object, test: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(test(item) for item in value)


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _check_prompt(value: Any) -> Any:
    if _is_str(value):
        return value
    if not isinstance(value, list):
        raise _type_error("expected a string, a list of strings, token ids, or a list of those")
    if not value:
        raise PydanticCustomError("invalid_value", "the list of prompts is empty")
    first = value[0]
    test = next((t for t in (_is_str, _is_int) if t(first)), None)
    if test is not None and _is_list_of(value, test):
        return value
    if isinstance(first, list) and _is_list_of(value, lambda v: _is_list_of(v, _is_int)):
        return value
    raise _type_error(
        "expected a string, a list of strings, a list of token ids, or a list of lists of token "
        "ids; the items are not all of one of these kinds"
    )


def _check_stop(value: Any) -> Any:
    if value is None or _is_str(value) or _is_list_of(value, _is_str):
        return value
    raise _type_error("expected a string or a list of strings")


def _check_content(value: Any) -> Any:
    if value is None or _is_str(value):
        return value
    if not isinstance(value, list):
        raise _type_error("expected a string or a list of text parts")
    for index, part in enumerate(value):
        _check_part(index, part)
    return value


def _check_part(index: int, part: object) -> None:
    if not isinstance(part, Mapping):
        raise _type_error(f'part {index} must be an object such as {{"type": "text", ...}}')
    kind = part.get("type")
    if kind != "text":
        if isinstance(kind, str):
            raise _unsupported(f"part {index} has the type {kind[:64]!r}; this model takes text")
        raise _type_error(f"part {index} has no type")
    if not isinstance(part.get("text"), str):
        raise _type_error(f"the text of part {index} must be a string")
    unknown = [k for k, v in part.items() if k not in ("type", "text") and v is not None]
    if unknown:
        raise _unsupported(f"part {index} has a field this server does not know: {unknown[0][:64]}")


def _check_bias(value: dict[str, float] | None) -> dict[str, float] | None:
    for key in value or ():
        # int() would take signs, spaces, underscores and other scripts' digits.
        if not (key.isascii() and key.isdigit() and len(key) < 11 and int(key) < INT32):
            raise PydanticCustomError(
                "invalid_value", "keys must be token ids such as '42', got {key}", {"key": key[:32]}
            )
    return value


def _absent_or(trivial: object, what: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value is None or value == trivial:
            return value
        raise _unsupported(f"this version does not do {what}")

    return check


def _instead(name: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value is None:
            return value
        raise _unsupported(f"this is the older form of {name}; send {name}")

    return check


def _schema(schema: JsonSchema) -> WithJsonSchema:
    return WithJsonSchema(schema)


_STRING: JsonSchema = {"type": "string"}
_INTEGER: JsonSchema = {"type": "integer"}
_STRINGS: JsonSchema = {"type": "array", "items": _STRING}
_IDS: JsonSchema = {"type": "array", "items": _INTEGER}
_TEXT_PART: JsonSchema = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": _STRING},
    "required": ["type", "text"],
}

Prompt = Annotated[
    Any,
    AfterValidator(_check_prompt),
    _schema({"anyOf": [_STRING, _STRINGS, _IDS, {"type": "array", "items": _IDS}]}),
]
Stop = Annotated[
    Any, AfterValidator(_check_stop), _schema({"anyOf": [_STRING, _STRINGS, {"type": "null"}]})
]
Content = Annotated[
    Any,
    AfterValidator(_check_content),
    _schema({"anyOf": [_STRING, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]}),
]


class Body(BaseModel):
    """Base of every request body."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool | None = None


class ReturnedFields(Body):
    """What litellm sends back under `provider_specific_fields`: members of our answers."""

    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_call_errors: list[str] | None = None


class Message(Body):
    """One turn of a conversation.

    Attributes:
        tool_calls, reasoning_content, reasoning: of the assistant's messages; the two names of the
            thinking mean the same.
        tool_call_errors: as this server's answers carry it; it is not shown to the model.
        provider_specific_fields: where litellm keeps such members; they count as the message's own.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[Any, _schema(described.TOOL_CALLS)] = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_call_errors: list[str] | None = None
    provider_specific_fields: Annotated[ReturnedFields | None, Field(exclude=True)] = None

    @model_validator(mode="after")
    def _own(self) -> Message:
        for name, value in self.provider_specific_fields or ():
            if value is None:
                continue
            if getattr(self, name) not in (None, value):
                raise PydanticCustomError(
                    "invalid_value",
                    "{name} and provider_specific_fields.{name} differ; send one of them",
                    {"name": name},
                )
            setattr(self, name, value)
        return self


class Generation(Body):
    """What chat and completions have in common.

    Attributes:
        user, metadata, safety_identifier, prompt_cache_key, store, service_tier: accepted because
            clients send them and because they cannot change an answer; only these (promise 2).
        response_format, guided_json, guided_regex, guided_choice, guided_grammar,
            structured_outputs, json_schema, grammar: what the answer must be, under the names that
            servers give it (`text.constraints`); one of them at most.
        timeout: an extension: seconds after which the answer is not wanted any more.
        cache_salt: an extension: cached prefixes are shared with requests of equal salt alone.
        prompt_logprobs: an extension: logprobs of the prompt's tokens, with so many alternatives.
        include_effective: an extension: the response carries a `tidemill` object that says what
            was really applied.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: Stop = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    logit_bias: Annotated[dict[str, float] | None, AfterValidator(_check_bias)] = None
    response_format: Annotated[Any, _schema(described.RESPONSE_FORMAT)] = None
    guided_json: Annotated[Any, _schema(described.JSON_SCHEMA)] = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: Annotated[Any, _schema(described.STRUCTURED_OUTPUTS)] = None
    json_schema: Annotated[Any, _schema(described.JSON_SCHEMA)] = None
    grammar: str | None = None
    timeout: float | None = None
    cache_salt: str | None = None
    include_effective: bool | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: Annotated[bool | None, AfterValidator(_absent_or(False, "stored completions"))] = None
    service_tier: Literal["auto", "default"] | None = None


class ChatRequest(Generation):
    """Body of POST /v1/chat/completions.

    Attributes:
        tools, tool_choice, parallel_tool_calls: see `text.tools`.
        enable_thinking, reasoning_effort, thinking_token_budget (alias thinking_budget),
            include_reasoning: see `text.thinking`.
    """

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    tools: Annotated[Any, _schema(described.TOOLS)] = None
    tool_choice: Annotated[Any, _schema(described.TOOL_CHOICE)] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Any, AfterValidator(_instead("tools")), _schema({"type": "null"})] = None
    function_call: Annotated[
        Any, AfterValidator(_instead("tool_choice")), _schema({"type": "null"})
    ] = None
    enable_thinking: bool | None = None
    reasoning_effort: Annotated[str | None, _schema({"enum": [*EFFORTS, None]})] = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    include_reasoning: bool | None = None
    modalities: Annotated[
        Any,
        AfterValidator(_absent_or(["text"], "other modalities than text")),
        _schema({"const": ["text"]}),
    ] = None


class CompletionRequest(Generation):
    """Body of POST /v1/completions."""

    prompt: Prompt
    logprobs: int | None = None
    echo: bool | None = None
    suffix: Annotated[str | None, AfterValidator(_absent_or("", "fill in the middle"))] = None
    best_of: int | None = None


class TokenizeRequest(Body):
    """Body of POST /tokenize: a prompt or messages.

    Attributes:
        add_special_tokens: put the model's own start tokens around a plain prompt (default true).
        return_token_strs: also return the vocabulary's spelling of each token.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message] | None, Field(min_length=1)] = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[Any, _schema(described.TOOLS)] = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None


class VectorBody(Body):
    """What the requests that generate nothing have in common.

    Attributes:
        user, metadata: accepted because clients send them and because they cannot change an answer.
        timeout, cache_salt: as in `Generation`.
    """

    model: str | None = None
    timeout: float | None = None
    cache_salt: str | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None


class EmbeddingRequest(VectorBody):
    """Body of POST /v1/embeddings.

    Attributes:
        prompt_name: an extension: which of the model's own prompts is put before each text.
    """

    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    prompt_name: str | None = None


class Document(Body):
    """A document of a rerank request in its longer form."""

    text: str


class RerankRequest(VectorBody):
    """Body of POST /v1/rerank and /rerank.

    Attributes:
        return_documents: repeat each document in the answer (default false).
    """

    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None


class ScoreRequest(VectorBody):
    """Body of POST /v1/score."""

    text_1: str | list[str]
    text_2: str | list[str]
