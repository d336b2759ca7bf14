"""Request bodies of the OpenAI dialect, with Tidemill's extensions.

Types are strict: a string is never read as a number, nor true as 1. Unknown fields are errors.
Ranges are checked with the sampling parameters (`contract.sampling`), once for all APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta
from msgspec.structs import asdict

from tidemill.generation.request import Cut
from tidemill.server.dialects.adapters import LoraScale
from tidemill.server.dialects.biases import LogitBias, TokenBans
from tidemill.server.dialects.fields import Fields
from tidemill.server.dialects.id_lists import Ids
from tidemill.server.dialects.keep_alive import KeepAlive
from tidemill.server.dialects.members import (
    Body,
    InvalidField,
    JsonSchema,
    checked,
    documented,
    unsupported,
    wrong_type,
    wrong_value,
)
from tidemill.server.dialects.openai import described, neutral
from tidemill.server.dialects.sampling_fields import SamplingFields
from tidemill.text.conversation import OWN_PARTS, PART_NOT_SHOWN, TEXT_PARTS, own_text
from tidemill.text.thinking import EFFORTS

INT32 = 2**31


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_list_of(value: object, test: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(test(item) for item in value)


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _is_ids(value: object) -> bool:
    return isinstance(value, Ids) or _is_list_of(value, _is_int)


def _check_prompt(value: Any) -> None:
    if _is_str(value) or isinstance(value, Ids):
        return
    if not isinstance(value, list):
        raise wrong_type("expected a string, a list of strings, token ids, or a list of those")
    if not value:
        raise wrong_value("the list of prompts is empty")
    first = value[0]
    test = next((t for t in (_is_str, _is_int) if t(first)), None)
    if test is not None and _is_list_of(value, test):
        return
    if isinstance(first, list) and _is_list_of(value, _is_ids):
        return
    raise wrong_type(
        "expected a string, a list of strings, a list of token ids, or a list of lists of token "
        "ids; the items are not all of one of these kinds"
    )


def _check_truncation(value: int) -> None:
    if value < -1 or value == 0:
        raise wrong_value(f"expected -1 (as many as fit) or at least 1, got {value}")


def _check_positive(value: int) -> None:
    if value < 1:
        raise wrong_value(f"expected at least 1, got {value}")


def _check_stop(value: Any) -> None:
    if not (_is_str(value) or _is_list_of(value, _is_str)):
        raise wrong_type("expected a string or a list of strings")


def _check_content(value: Any) -> None:
    if _is_str(value):
        return
    if not isinstance(value, list):
        raise wrong_type("expected a string or a list of text parts")
    for index, part in enumerate(value):
        _check_part(index, part)


def _check_part(index: int, part: object) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, Mapping):
        raise wrong_type(f'part {index} must be an object such as {{"type": "text", ...}}')
    kind = part.get("type")
    if isinstance(kind, str) and kind in OWN_PARTS:
        if own_text(part) is None:
            raise wrong_type(f"the text of part {index} must be a string")
        return
    if kind not in TEXT_PARTS:
        if isinstance(kind, str):
            raise unsupported(f"part {index} has the type {kind[:64]!r}; this model takes text")
        raise wrong_type(f"part {index} has no type")
    if not isinstance(part.get("text"), str):
        raise wrong_type(f"the text of part {index} must be a string")
    unknown = [
        k
        for k, v in part.items()
        if k not in ("type", "text") and k not in PART_NOT_SHOWN and v is not None
    ]
    if unknown:
        raise unsupported(f"part {index} has a field this server does not know: {unknown[0][:64]}")


_STRING: JsonSchema = {"type": "string"}
_INTEGER: JsonSchema = {"type": "integer"}
_STRINGS: JsonSchema = {"type": "array", "items": _STRING}
_IDS: JsonSchema = {"type": "array", "items": _INTEGER}
_TEXT_PART: JsonSchema = {
    "type": "object",
    "properties": {"type": {"enum": list(TEXT_PARTS)}, "text": _STRING},
    "required": ["type", "text"],
}

Prompt = Annotated[
    Any,
    checked(_check_prompt, {"anyOf": [_STRING, _STRINGS, _IDS, {"type": "array", "items": _IDS}]}),
]
Stop = Annotated[Any, checked(_check_stop, {"anyOf": [_STRING, _STRINGS, {"type": "null"}]})]
Content = Annotated[
    Any,
    checked(
        _check_content,
        {"anyOf": [_STRING, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]},
    ),
]


class StreamOptions(Body, kw_only=True):
    """Options of a stream.

    Attributes:
        include_usage: the last chunk has the usage.
        continuous_usage_stats: every chunk has the usage so far; needs `include_usage`.
    """

    known: ClassVar[Fields] = neutral.STREAM_OPTIONS

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ReturnedFields(Body, kw_only=True):
    """Members of this server's answers that litellm returns in `provider_specific_fields`."""

    known: ClassVar[Fields] = neutral.RETURNED

    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_call_errors: list[str] | None = None


class Message(Body, kw_only=True):
    """One turn of a conversation.

    Attributes:
        tool_calls, reasoning_content, reasoning: of assistant messages; the two names of the
            thinking are equivalent.
        refusal: of an assistant message: its content, if it has no other.
        tool_call_errors: as in this server's answers; not shown to the model.
        provider_specific_fields: litellm's place for such members; merged into the message.
    """

    known: ClassVar[Fields] = neutral.MESSAGE

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    refusal: str | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[Any, documented(described.TOOL_CALLS)] = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_call_errors: list[str] | None = None
    provider_specific_fields: ReturnedFields | None = None

    def finalize(self) -> None:
        for name, value in asdict(self.provider_specific_fields or ReturnedFields()).items():
            if value is None:
                continue
            if getattr(self, name, None) not in (None, value):
                raise wrong_value(
                    f"{name} and provider_specific_fields.{name} differ; send one of them"
                )
            setattr(self, name, value)
        self.provider_specific_fields = None
        if self.refusal:
            if self.role != "assistant" or self.content:
                raise wrong_value("refusal is for messages of the assistant without content")
            self.content = self.refusal
        self.refusal = None


class Generation(SamplingFields, kw_only=True):
    """Fields that chat and completions share.

    Attributes:
        user, metadata, safety_identifier, prompt_cache_key: accepted, since clients send them and
            they cannot change an answer (promise 2); others: `server.dialects.openai.neutral`.
        service_tier, priority: order among one client's requests.
        response_format, guided_json, guided_regex, guided_choice, guided_grammar,
            structured_outputs, json_schema, grammar: the constraint on the answer, as named by
            several servers (`text.constraints`); at most one of them.
        timeout: an extension: seconds until the request expires.
        keep_alive: an extension: how long the model stays loaded after the request.
        use_beam_search: beam search with `beam_width`, else `best_of`, else `n` beams, as in vLLM.
        bad_words: texts that the output must not contain, as they are tokenized alone and after a
            space.
        custom_token_bans: ids that are not sampled, as text-generation-webui has them.
        ban_eos_token: the model's end tokens are not sampled.
        num_ctx: tokens of prompt and output together, up to what the model is served with.
        truncate_prompt_tokens: only the last so many tokens of each prompt are used; -1: as many as
            fit. The answer names the prompts that were cut in `truncated`.
        truncation_length: the same for prompt and `max_tokens` together, as text-generation-webui
            has it.
        truncation_side: right: the first tokens are used instead.
        lora: adapters with their scales, added up, as llama.cpp has it.
        lora_path: the name of an adapter, as SGLang has it; the same as naming it as `model`.
        speculation: an extension: what drafts tokens ahead of the output: `off`, `auto` (whatever
            is loaded) or a drafter; the server's setting otherwise. It cannot change the answer.
        cache_salt: an extension: cached prefixes are shared only between equal salts.
        prompt_logprobs: an extension: number of alternatives in the logprobs of prompt tokens.
        include_effective: an extension: the response has a `tidemill` object with the effective
            settings.
    """

    known: ClassVar[Fields] = neutral.GENERATION

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: LogitBias = None
    bad_words: list[str] | None = None
    custom_token_bans: TokenBans = None
    ban_eos_token: bool | None = None
    num_ctx: int | None = None
    use_beam_search: bool | None = None
    truncate_prompt_tokens: Annotated[int, checked(_check_truncation)] | None = None
    truncation_length: Annotated[int, checked(_check_positive)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    response_format: Annotated[Any, documented(described.RESPONSE_FORMAT)] = None
    guided_json: Annotated[Any, documented(described.JSON_SCHEMA)] = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: Annotated[Any, documented(described.STRUCTURED_OUTPUTS)] = None
    json_schema: Annotated[Any, documented(described.JSON_SCHEMA)] = None
    grammar: str | None = None
    timeout: float | None = None
    keep_alive: KeepAlive = None
    lora: list[LoraScale] | None = None
    lora_path: str | None = None
    speculation: (
        Literal["off", "auto", "lookup", "draft", "medusa", "skip", "eagle", "mtp"] | None
    ) = None
    cache_salt: str | None = None
    include_effective: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    priority: int | None = None


class Answered(Generation, kw_only=True):
    """Fields of chat and completions that say what an answer shows.

    Attributes:
        echo: completions: the prompt precedes the output; chat: the final message's text does,
            where it is the assistant's.
        add_special_tokens: the tokenizer's start tokens go before the prompt; without it before
            plain prompts, not before what the chat template writes.
        return_token_ids: the ids of prompts and outputs are in the answer.
        return_tokens_as_token_ids: tokens in logprobs are written ``token_id:42``.
        include_timings, timings_per_token: the answer, or every chunk too, has `timings`.
    """

    echo: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    include_timings: bool | None = None
    timings_per_token: bool | None = None


class Prediction(Body, kw_only=True):
    """`prediction`: text that the answer may contain, from which drafts are taken. It cannot change
    the answer."""

    type: Literal["content"]
    content: Content


class ChatRequest(Answered, kw_only=True):
    """Body of POST /v1/chat/completions.

    Attributes:
        tools, tool_choice, parallel_tool_calls: see `text.tools`.
        enable_thinking, reasoning_effort, thinking_token_budget (alias thinking_budget),
            include_reasoning: see `text.thinking`.
        verbosity: for templates that use it.
    """

    known: ClassVar[Fields] = neutral.CHAT

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    tools: Annotated[Any, documented(described.TOOLS)] = None
    tool_choice: Annotated[Any, documented(described.TOOL_CHOICE)] = None
    parallel_tool_calls: bool | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Annotated[str | None, documented({"enum": [*EFFORTS, None]})] = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    include_reasoning: bool | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prediction: Prediction | None = None


class CompletionRequest(Answered, kw_only=True):
    """Body of POST /v1/completions.

    Attributes:
        suffix: what follows a gap that the output fills, by the model's own marks.
    """

    known: ClassVar[Fields] = neutral.COMPLETION

    prompt: Prompt
    suffix: str | None = None
    logprobs: int | None = None


class TokenizeRequest(Body, kw_only=True):
    """Body of POST /tokenize: a prompt or messages.

    Attributes:
        add_special_tokens: put the model's own start tokens around a plain prompt (default true).
        return_token_strs: also return each token as the vocabulary writes it.
    """

    known: ClassVar[Fields] = neutral.TOKENIZE

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[Any, documented(described.TOOLS)] = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body, kw_only=True):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None


class VectorBody(Body, kw_only=True):
    """Fields that requests without generation share.

    Attributes:
        user, metadata: accepted, since clients send them and they cannot change an answer.
        timeout, keep_alive, cache_salt: as in `Generation`.
        truncate_prompt_tokens: inputs are cut to so many tokens, as vLLM has it; -1: to as many as
            the model takes. Absent: one that is too long is an error.
        truncation_side: the side that is cut off (default right).
        truncate: true: as `truncate_prompt_tokens` -1; START and END also say which side.
    """

    known: ClassVar[Fields] = neutral.VECTORS

    model: str | None = None
    timeout: float | None = None
    keep_alive: KeepAlive = None
    cache_salt: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    truncate: bool | Literal["START", "END"] | None = None

    @property
    def cut(self) -> Cut | None:
        """What is cut off inputs that are too long; None: that is an error."""
        if self.truncate_prompt_tokens is None and not self.truncate:
            return None
        left = self.truncation_side == "left" or self.truncate == "START"
        return Cut.START if left else Cut.END

    def finalize(self) -> None:
        """Raise where two fields name different sides."""
        named = {"START": "left", "END": "right"}.get(str(self.truncate))
        if named and self.truncation_side not in (None, named):
            reason = f'truncate "{self.truncate}" cuts the {named} side'
            raise InvalidField("invalid_value", reason, "truncation_side")

    @property
    def context(self) -> int | None:
        """Tokens of an input; None: as many as the model takes."""
        return None if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens


class EmbeddingRequest(VectorBody, kw_only=True):
    """Body of POST /v1/embeddings.

    Attributes:
        prompt_name: an extension: the model's prompt that precedes each text.
    """

    known: ClassVar[Fields] = neutral.EMBEDDING

    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    prompt_name: str | None = None


class Document(Body, kw_only=True):
    """A document of a rerank request, as an object."""

    text: str


class RerankRequest(VectorBody, kw_only=True):
    """Body of POST /v1/rerank and /rerank.

    Attributes:
        return_documents: repeat each document in the answer (default false).
        texts: instead of documents, as Text Embeddings Inference has it: the answer is in its form.
        return_text: with `texts`: repeat each text in the answer (default false).
        max_tokens_per_doc: only so many tokens of each document are read; absent: all.
    """

    known: ClassVar[Fields] = neutral.RERANK

    query: str
    documents: list[str | Document] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    texts: list[str] | None = None
    return_text: bool | None = None
    max_tokens_per_doc: int | None = None

    def finalize(self) -> None:
        """Raise unless there is one form."""
        VectorBody.finalize(self)
        if self.texts is None:
            if self.documents is None:
                raise InvalidField("missing_required_parameter", "is required", "documents")
            wrong = "return_text" if self.return_text is not None else None
        else:
            mixed = ("documents", "top_n", "return_documents")
            wrong = next((name for name in mixed if getattr(self, name) is not None), None)
        if wrong is not None:
            one, other = ("documents", "texts") if self.texts is None else ("texts", "documents")
            raise InvalidField("invalid_value", f"belongs to {other}, and {one} were sent", wrong)


class ScoreRequest(VectorBody, kw_only=True):
    """Body of POST /v1/score."""

    text_1: str | list[str]
    text_2: str | list[str]
