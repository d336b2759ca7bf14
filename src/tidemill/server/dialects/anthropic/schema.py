"""Request bodies of the Anthropic dialect.

A content block is one struct with the members of all kinds, and a table says which kind has which:
msgspec's tagged unions could not name the block that is wrong, nor the kinds that are not served.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from tidemill.server.dialects.anthropic import neutral
from tidemill.server.dialects.fields import Fields
from tidemill.server.dialects.members import (
    Body,
    InvalidField,
    checked,
    documented,
    unsupported,
    wrong_type,
    wrong_value,
)

# kind of block -> (members that it needs, members that it may have)
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "text": (("text",), ()),
    "thinking": (("thinking", "signature"), ()),
    "tool_use": (("id", "name", "input"), ()),
    "tool_result": (("tool_use_id",), ("content", "is_error")),
    "document": (("source",), ("title", "context")),
    "search_result": (("source", "title", "content"), ()),
}
_SHOWN = ("text", "document", "search_result")
# where -> the kinds of blocks that it takes
TAKEN = {
    "user": (*_SHOWN, "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
    "tool_result": _SHOWN,
    "search_result": ("text",),
    "document": ("text",),
}


def _check_range(low: float, high: float) -> Any:
    def check(value: float) -> None:
        if not low <= value <= high:
            raise wrong_value(f"must be between {low:g} and {high:g}, got {value:g}")

    return checked(check, {"minimum": low, "maximum": high})


def _check_count(least: int) -> Any:
    def check(value: int) -> None:
        if not least <= value < 2**31:
            raise wrong_value(f"must be between {least} and {2**31 - 1}, got {str(value)[:32]}")

    return checked(check, {"minimum": least, "maximum": 2**31 - 1})


def _at(error: InvalidField, path: str) -> InvalidField:
    error.path = path
    return error


class AnthropicSource(Body, kw_only=True):
    """Where a document comes from: text, or text blocks."""

    type: str
    media_type: str | None = None
    data: str | None = None
    content: str | list[AnthropicBlock] | None = None
    url: str | None = None
    file_id: str | None = None

    def check(self) -> None:
        """Raise unless it is text; called by its block, which may be of a kind without any."""
        plain = self.type == "text" and self.media_type in (None, "text/plain")
        if not plain and self.type != "content":
            kind = f"{self.type} {self.media_type or ''}".strip()[:64]
            raise _at(
                unsupported(f"documents of the type {kind!r}; send its text (text/plain)"), "type"
            )
        needed = "data" if plain else "content"
        for name in ("data", "content", "url", "file_id"):
            if (getattr(self, name) is not None) != (name == needed):
                raise _at(wrong_value(f"a source of the type {self.type} has {needed} alone"), name)
        check_blocks(self.content, "document")


class AnthropicBlock(Body, kw_only=True):
    """A block of content; `KINDS` has the members of each kind."""

    known: ClassVar[Fields] = neutral.BLOCK

    type: Annotated[str, documented({"enum": list(KINDS)})]
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[AnthropicBlock] | None = None
    is_error: bool | None = None
    source: str | AnthropicSource | None = None
    title: str | None = None
    context: str | None = None
    data: str | None = None
    cache_control: dict[str, Any] | None = None

    def finalize(self) -> None:
        if self.type not in KINDS:
            known = ", ".join(KINDS)
            reason = f"blocks of the type {self.type[:64]!r}; this server takes {known}"
            raise _at(unsupported(reason), "type")
        needed, optional = KINDS[self.type]
        for name in self.__struct_fields__:
            if name in ("type", "cache_control", *optional):
                continue
            if (getattr(self, name) is not None) != (name in needed):
                if name in needed:
                    raise InvalidField("missing_required_parameter", "is required", name)
                raise _at(wrong_value(f"does not belong to a block of the type {self.type}"), name)
        if self.source and isinstance(self.source, str) != (self.type == "search_result"):
            reason = "a document has an object here, a search result a text"
            raise _at(wrong_value(reason), "source")
        if isinstance(self.source, AnthropicSource):
            try:
                self.source.check()
            except InvalidField as invalid:
                raise _at(invalid, f"source.{invalid.path}") from None
        if self.type in TAKEN:
            check_blocks(self.content, self.type)


def check_blocks(content: str | list[AnthropicBlock] | None, where: str) -> None:
    """Raise unless all blocks of a content are of kinds that its place takes."""
    for index, block in enumerate(content if isinstance(content, list) else ()):
        if block.type not in TAKEN[where]:
            reason = f"{block.type} is not taken in {where}; {', '.join(TAKEN[where])} are"
            raise _at(wrong_value(reason), f"content[{index}].type")


class AnthropicMessage(Body, kw_only=True):
    """One turn."""

    known: ClassVar[Fields] = neutral.MESSAGE

    role: Literal["user", "assistant", "system"]
    content: str | list[AnthropicBlock]

    def finalize(self) -> None:
        check_blocks(self.content, self.role)


class AnthropicTool(Body, kw_only=True):
    """A tool that the client runs."""

    known: ClassVar[Fields] = neutral.TOOL

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    type: str | None = None
    cache_control: dict[str, Any] | None = None

    def finalize(self) -> None:
        if self.type is not None:
            reason = (
                f"the tool {self.type[:64]!r}, which Anthropic's service defines or runs; define "
                "one of the type custom, with an input_schema"
            )
            raise _at(unsupported(reason), "type")
        if self.input_schema is None:
            raise InvalidField("missing_required_parameter", "is required", "input_schema")


class AnthropicToolChoice(Body, kw_only=True):
    """Which tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def finalize(self) -> None:
        if (self.name is not None) != (self.type == "tool"):
            raise _at(wrong_value("is for the type tool, which needs it"), "name")


class AnthropicThinking(Body, kw_only=True):
    """Whether to think, how long, and whether the thinking is shown."""

    known: ClassVar[Fields] = neutral.THINKING

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, _check_count(1)] | None = None
    display: Literal["summarized", "omitted"] | None = None

    def finalize(self) -> None:
        if (self.budget_tokens is not None) != (self.type == "enabled"):
            raise _at(wrong_value("is for the type enabled, which needs it"), "budget_tokens")
        if self.display is not None and self.type == "disabled":
            raise _at(wrong_value("there is no thinking to display"), "display")


class AnthropicOutputFormat(Body, kw_only=True):
    """The JSON schema of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class AnthropicOutput(Body, kw_only=True):
    """Effort and format of the answer."""

    known: ClassVar[Fields] = neutral.OUTPUT

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnthropicOutputFormat | None = None


Content = str | list[AnthropicBlock]


class CountTokensRequest(Body, kw_only=True):
    """Body of POST /v1/messages/count_tokens, and what a request for a message shares with it.

    Attributes:
        output_format: the earlier name of `output_config.format`.
    """

    known: ClassVar[Fields] = neutral.CONVERSATION

    model: str | None = None
    messages: Annotated[list[AnthropicMessage], Meta(min_length=1)]
    system: str | list[AnthropicBlock] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinking | None = None
    output_config: AnthropicOutput | None = None
    output_format: AnthropicOutputFormat | None = None
    cache_control: dict[str, Any] | None = None

    def finalize(self) -> None:
        for index, block in enumerate(self.system if isinstance(self.system, list) else ()):
            if block.type != "text":
                raise _at(wrong_value("system takes blocks of text"), f"system[{index}].type")
        if self.output_format is not None:
            output = self.output_config = self.output_config or AnthropicOutput()
            if output.format not in (None, self.output_format):
                raise _at(wrong_value("differs from output_config.format"), "output_format")
            output.format, self.output_format = self.output_format, None


def _check_metadata(value: dict[str, Any]) -> None:
    if not isinstance(value.get("user_id"), str | None):
        raise wrong_type("user_id must be a string")


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Body of POST /v1/messages.

    Attributes:
        metadata: changes no answer; its `user_id` keeps its version of a model.
    """

    known: ClassVar[Fields] = neutral.MESSAGES

    max_tokens: Annotated[int, _check_count(0)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, _check_range(0, 1)] | None = None
    top_p: Annotated[float, _check_range(0, 1)] | None = None
    top_k: Annotated[int, _check_count(0)] | None = None
    metadata: Annotated[dict[str, Any], checked(_check_metadata)] | None = None

    def finalize(self) -> None:
        super().finalize()
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens > 0:
            reason = f"must be less than max_tokens ({self.max_tokens}), got {budget}"
            raise _at(wrong_value(reason), "thinking.budget_tokens")
        if self.max_tokens == 0 and self.stream:
            raise _at(wrong_value("0 writes nothing to stream; send stream: false"), "max_tokens")
