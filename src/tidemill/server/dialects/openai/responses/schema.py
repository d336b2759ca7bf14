"""Request bodies of Responses and Conversations."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from tidemill.server.dialects.fields import Fields
from tidemill.server.dialects.members import (
    Body,
    JsonSchema,
    checked,
    documented,
    unsupported,
    wrong_type,
    wrong_value,
)
from tidemill.server.dialects.openai import described, schema
from tidemill.server.dialects.openai.responses import neutral

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512

INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")
"""Values of `include` that add something here."""

_OF_HOSTED_TOOLS = (
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
    "code_interpreter_call.outputs",
)
"""Values that add something to items that no answer of this server has."""

INCLUDABLE = (*INCLUDED, *_OF_HOSTED_TOOLS)


def _check_input(value: Any) -> None:
    if isinstance(value, str):
        return
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise wrong_type("expected a string or a list of items, each an object")


def _check_items(value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise wrong_type("expected a list of items, each an object")


def _check_metadata(value: dict[str, Any]) -> None:
    if len(value) > MAX_METADATA:
        raise wrong_value(f"at most {MAX_METADATA} pairs are taken, got {len(value)}")
    for key, text in value.items():
        if not isinstance(text, str):
            raise wrong_type(f"the value of {key[:64]!r} must be a string")
        if len(key) > MAX_METADATA_KEY or len(text) > MAX_METADATA_VALUE:
            raise wrong_value(
                f"keys have at most {MAX_METADATA_KEY} characters and values at most "
                f"{MAX_METADATA_VALUE}"
            )


def _check_include(value: list[Any]) -> None:
    for item in value:
        if item not in INCLUDABLE:
            raise wrong_value(f"{str(item)[:64]!r} is not one of {', '.join(INCLUDABLE)}")


def _check_conversation(value: Any) -> None:
    if isinstance(value, str) and value:
        return
    if not (isinstance(value, dict) and set(value) == {"id"} and isinstance(value["id"], str)):
        raise wrong_type('expected the id of a conversation, or {"id": ...}')


_ITEM: JsonSchema = {"type": "object"}
_ITEMS: JsonSchema = {"type": "array", "items": _ITEM}
_NULL: JsonSchema = {"type": "null"}
_TOOLS: JsonSchema = {
    "anyOf": [
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"type": "string"}, "name": {"type": "string"}},
                "required": ["type"],
            },
        },
        _NULL,
    ]
}
_TOOL_CHOICE: JsonSchema = {
    "anyOf": [
        {"enum": ["none", "auto", "required", None]},
        {
            "type": "object",
            "properties": {"type": {"enum": ["function", "custom", "allowed_tools"]}},
            "required": ["type"],
        },
    ]
}
_FORMAT: JsonSchema = described.RESPONSE_FORMAT

Items = Annotated[Any, checked(_check_items, _ITEMS)]
Metadata = Annotated[dict[str, Any], checked(_check_metadata)]


class ResponseStreamOptions(Body, kw_only=True):
    """Options of a stream of Responses; all have one value."""

    known: ClassVar[Fields] = neutral.STREAM_OPTIONS


class Reasoning(Body, kw_only=True):
    """How to think.

    Attributes:
        effort: see `text.thinking`.
        summary (older: generate_summary): the thinking itself is given as its summary.
    """

    known: ClassVar[Fields] = neutral.REASONING

    effort: Annotated[str | None, documented({"enum": [*schema.EFFORTS, None]})] = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None

    def finalize(self) -> None:
        if self.summary is None:
            self.summary = self.generate_summary
        elif self.generate_summary not in (None, self.summary):
            raise wrong_value("summary and generate_summary differ; send one of them")
        if self.summary == "concise":
            raise unsupported(
                "concise summaries are not made: a summary is the thinking itself; send auto or "
                "detailed"
            )


class TextOptions(Body, kw_only=True):
    """The form of the answer's text."""

    known: ClassVar[Fields] = neutral.TEXT

    format: Annotated[Any, documented(_FORMAT)] = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseRequest(schema.Generation, kw_only=True):
    """Body of POST /v1/responses.

    Attributes:
        input: a user's message, or items (`responses.items`).
        instructions: a system message before everything else; not inherited by later responses.
        previous_response_id, conversation: what precedes `input`; at most one of them.
        max_output_tokens: an alias of `max_tokens`.
        store: false: the response cannot be retrieved or continued (default true).
        truncation: `auto` drops the oldest items where the input exceeds the context.
        background: the response is generated whether or not somebody waits.
        prompt_cache_key, safety_identifier, user, metadata: repeated in the answer.
    """

    known: ClassVar[Fields] = neutral.REQUEST

    stream_options: ResponseStreamOptions | None = None  # type: ignore[assignment]
    input: Annotated[Any, checked(_check_input, {"anyOf": [{"type": "string"}, _ITEMS, _NULL]})] = (
        None
    )
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Annotated[
        Any, checked(_check_conversation, {"anyOf": [{"type": "string"}, _ITEM, _NULL]})
    ] = None
    tools: Annotated[Any, documented(_TOOLS)] = None
    tool_choice: Annotated[Any, documented(_TOOL_CHOICE)] = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: int | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include: Annotated[list[str], checked(_check_include)] | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: Metadata | None = None

    def finalize(self) -> None:
        if self.n not in (None, 1):
            raise _about("n", "responses have one choice; send several requests")
        if self.prompt_logprobs is not None:
            raise _about("prompt_logprobs", "these are of /v1/completions and chat completions")
        if self.previous_response_id is not None and self.conversation is not None:
            raise wrong_value(
                "previous_response_id and conversation exclude each other; send one of them"
            )
        if self.background and self.store is False:
            raise wrong_value("background needs store: a response in the background is retrieved")
        text = self.text
        if text is not None and text.format is not None and self.response_format is not None:
            raise wrong_value(
                "text.format and response_format exclude each other; send text.format"
            )


def _about(name: str, reason: str) -> Exception:
    problem = unsupported(reason)
    problem.path = name
    return problem


class InputTokensRequest(ResponseRequest, kw_only=True):
    """Body of POST /v1/responses/input_tokens; what does not change the prompt is checked alone."""


class CompactRequest(ResponseRequest, kw_only=True):
    """Body of POST /v1/responses/compact; `max_output_tokens` bounds the summary.

    Codex sends the tools and the form of its turns: neither rules the summary.
    """

    def finalize(self) -> None:
        super().finalize()
        for name in ("stream", "background", "conversation"):
            if getattr(self, name):
                raise _about(name, "a compaction is one answer, and changes nothing that is stored")
        self.text = None


class ConversationRequest(Body, kw_only=True):
    """Body of POST /v1/conversations.

    Attributes:
        items: the first ones; at most 20, as with OpenAI.
    """

    items: Items = None
    metadata: Metadata | None = None


class ConversationUpdate(Body, kw_only=True):
    """Body of POST /v1/conversations/{id}."""

    metadata: Metadata


class ConversationItems(Body, kw_only=True):
    """Body of POST /v1/conversations/{id}/items."""

    items: Items
