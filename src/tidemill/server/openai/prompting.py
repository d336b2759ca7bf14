"""Messages to a prompt, and the checks that nothing in them is dropped on the way (promise 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.contract.resolve import ContextLengthError
from tidemill.server.context import ServerContext
from tidemill.server.openai import schema
from tidemill.text.answering import ChatSide, check_tools
from tidemill.text.conversation import check_complete, check_kwargs, check_messages
from tidemill.text.template import ChatTemplate
from tidemill.text.tools import NO_TOOLS, ToolUse

HEAD_CHARS = 2**15
"""Characters that may always be tokenized, whatever the context."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as the model reads it.

    Attributes:
        token_ids: of the whole prompt.
        text: what the template wrote; its end says whether the model is thinking.
    """

    token_ids: tuple[int, ...]
    text: str


async def chat_prompt(
    context: ServerContext,
    messages: Sequence[schema.Message],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    kwargs: Mapping[str, Any],
    variables: Mapping[str, Any] | None = None,
    use: ToolUse = NO_TOOLS,
) -> ChatPrompt:
    """A conversation by the model's chat template.

    See `rendered`.
    """
    text = await rendered(
        context.template,
        context.chat,
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        kwargs=kwargs,
        variables=variables,
        use=use,
    )
    ids = await encode_prompt(context, text, param="messages", add_special=False)
    return ChatPrompt(ids, text)


async def rendered(
    template: ChatTemplate,
    chat: ChatSide,
    messages: Sequence[schema.Message],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    kwargs: Mapping[str, Any],
    variables: Mapping[str, Any] | None = None,
    use: ToolUse = NO_TOOLS,
) -> str:
    """What a model's template makes of a conversation.

    Args:
        kwargs: the request's `chat_template_kwargs`.
        variables: what the server itself has to tell the template.
        use: the tools to show.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    source = template.source or ""
    abilities = chat.abilities
    check_tools(use, chat)
    said = [m.model_dump(exclude_none=True) for m in messages]
    plain = check_messages(said, abilities, source)
    check_kwargs(kwargs, source)
    generate = (
        not continue_final_message if add_generation_prompt is None else add_generation_prompt
    )
    if continue_final_message:
        _check_continued(plain[-1], generate)
    text = await template.render_async(
        plain, use.shown or None, add_generation_prompt=generate, **{**kwargs, **(variables or {})}
    )
    check_complete(plain, text)
    if continue_final_message:
        text = _cut_after(text, str(plain[-1]["content"]))
    return text


def _check_continued(final: Mapping[str, Any], generate: bool) -> None:
    name = "continue_final_message"
    if generate:
        raise bad_request(name, f"{name} and add_generation_prompt exclude each other")
    if final["role"] != "assistant":
        raise bad_request(name, f"{name} needs the final message to be the assistant's")
    if final.get("tool_calls"):
        raise bad_request(name, f"{name}: the final message ends with tool calls, not with text")


async def encode_prompt(
    context: ServerContext, text: str, *, param: str, add_special: bool
) -> tuple[int, ...]:
    """Token ids of a prompt's text.

    A text far beyond the context is refused by a beginning of it: tokens take a hundred times the
    memory of their characters, so that a few bodies of the allowed size could use up a machine's.

    Raises:
        TidemillError: kind BAD_REQUEST naming `param`.
    """
    limit, size = context.info.max_model_len, HEAD_CHARS
    while size < len(text):
        head = len(await context.tokenizer.encode_async(text[:size], add_special=False))
        # Twice: where the text is cut, its tokens may be others than in the whole.
        if head > 2 * limit:
            raise ContextLengthError(
                param,
                f"the first {size} of the prompt's {len(text)} characters alone are {head} tokens "
                f"and the context holds {limit}, the output included; shorten the prompt",
            )
        size *= 4
    return tuple(await context.tokenizer.encode_async(text, add_special=add_special))


def _cut_after(prompt: str, content: str) -> str:
    """The prompt up to the end of its final message's content, to be continued from there."""
    for text in (content, content.strip()):
        if text and text in prompt:
            return prompt[: prompt.rindex(text) + len(text)]
    raise bad_request(
        "continue_final_message",
        "the model's chat template rewrites the final message, so it cannot be continued",
    )
