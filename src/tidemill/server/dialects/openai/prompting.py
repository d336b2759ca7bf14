"""From the conversation or text of a body to the tokens of the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from tidemill.base.errors import bad_request
from tidemill.contract.resolve import ContextLengthError
from tidemill.server.context import ServerContext
from tidemill.server.dialects.openai import schema
from tidemill.server.transport.slices import slices
from tidemill.text.detokenizer import Detokenizer
from tidemill.text.prompt import PromptOptions, render_prompt
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.tools import NO_TOOLS, ToolUse

HEAD_CHARS = 2**15
"""Characters that are always tokenized, whatever the context length."""


DECODED_AT_ONCE = 4096
"""Tokens that are decoded without yielding to the event loop."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered and tokenized conversation.

    Attributes:
        token_ids: of the whole prompt.
        text: output of the template; its end shows whether thinking has begun.
    """

    token_ids: tuple[int, ...]
    text: str


async def chat_prompt(
    context: ServerContext,
    messages: Sequence[schema.Message],
    options: PromptOptions,
    use: ToolUse = NO_TOOLS,
) -> ChatPrompt:
    """Render a conversation with the model's chat template; see `render_prompt`."""
    # In a thread: a template may take up to its time bound.
    text = await asyncio.to_thread(
        render_prompt, context.template, context.chat, template_messages(messages), options, use
    )
    ids = await encode_prompt(context, text, param="messages", add_special=False)
    return ChatPrompt(ids, text)


def template_messages(messages: Sequence[schema.Message]) -> list[dict[str, Any]]:
    """Messages as `render_prompt` takes them."""
    return [{k: v for k, v in asdict(m).items() if v is not None} for m in messages]


def prompt_options(
    body: schema.ChatRequest | schema.TokenizeRequest, variables: Mapping[str, Any] | None = None
) -> PromptOptions:
    """The options of a body that concern the prompt."""
    return PromptOptions(
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        documents=body.documents,
        kwargs=body.chat_template_kwargs,
        variables=variables,
    )


async def encode_prompt(
    context: ServerContext, text: str, *, param: str, add_special: bool
) -> tuple[int, ...]:
    """Token ids of a prompt's text.

    A text far beyond the context is rejected after tokenizing only its beginning. Tokens take a
    hundred times the memory of their characters, so a few large bodies could exhaust memory.

    Raises:
        TidemillError: kind BAD_REQUEST naming `param`.
    """
    limit, size = context.info.max_model_len, HEAD_CHARS
    while size < len(text):
        head = len(await context.tokenizer.encode_async(text[:size], add_special=False))
        # Factor 2: at the cut, the tokens may differ from those of the whole text.
        if head > 2 * limit:
            raise ContextLengthError(
                param,
                f"the first {size} of the prompt's {len(text)} characters alone are {head} tokens "
                f"and the context holds {limit}, the output included; shorten the prompt",
            )
        size *= 4
    return tuple(await context.tokenizer.encode_async(text, add_special=add_special))


async def check_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raise a 400 unless all are ids of the vocabulary."""
    async for some in slices(token_ids, 16 * DECODED_AT_ONCE):
        if min(some) < 0 or max(some) >= vocab_size:
            wrong = next(t for t in some if not 0 <= t < vocab_size)
            raise bad_request(
                param, f"{param} holds the token id {wrong}; ids are 0 to {vocab_size - 1}"
            )
    await asyncio.sleep(0)  # there may be many lists


async def decode_ids(
    tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool = True
) -> str:
    """`Tokenizer.decode` in slices."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    parts = [detokenizer.push(some) async for some in slices(token_ids, DECODED_AT_ONCE)]
    return "".join((*parts, detokenizer.finish()))
