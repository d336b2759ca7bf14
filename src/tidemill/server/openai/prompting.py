"""Messages to a prompt, and the checks that nothing in them is dropped on the way (promise 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.contract.resolve import ContextLengthError
from tidemill.server.context import ServerContext
from tidemill.server.openai import schema
from tidemill.text.conversation import check_complete, check_kwargs

HEAD_CHARS = 2**15
"""Characters that may always be tokenized, whatever the context."""


async def chat_prompt(
    context: ServerContext,
    messages: Sequence[schema.Message],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    kwargs: Mapping[str, Any] | None,
) -> tuple[int, ...]:
    """Token ids of a conversation by the model's chat template.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    source = context.template.source or ""
    plain = [_plain(i, m, source) for i, m in enumerate(messages)]
    check_kwargs(kwargs or {}, source)
    generate = (
        not continue_final_message if add_generation_prompt is None else add_generation_prompt
    )
    if continue_final_message:
        if generate:
            raise bad_request(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other",
            )
        if plain[-1]["role"] != "assistant":
            raise bad_request(
                "continue_final_message",
                "continue_final_message needs the final message to be the assistant's",
            )
    text = await context.template.render_async(
        plain, add_generation_prompt=generate, **(kwargs or {})
    )
    check_complete(plain, text)
    if continue_final_message:
        text = _cut_after(text, str(plain[-1]["content"]))
    return await encode_prompt(context, text, param="messages", add_special=False)


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


def _plain(index: int, message: schema.Message, source: str) -> dict[str, Any]:
    if message.content is None:
        raise bad_request(f"messages[{index}].content", f"messages[{index}].content is required")
    content = message.content
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    role = message.role
    if role == "developer" and "developer" not in source:
        role = "system"  # OpenAI's newer name for the same thing; most templates know the old one
    plain: dict[str, Any] = {"role": role, "content": content}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            plain[name] = value
    return plain


def _cut_after(prompt: str, content: str) -> str:
    """The prompt up to the end of its final message's content, to be continued from there."""
    for text in (content, content.strip()):
        if text and text in prompt:
            return prompt[: prompt.rindex(text) + len(text)]
    raise bad_request(
        "continue_final_message",
        "the model's chat template rewrites the final message, so it cannot be continued",
    )
