"""Texts, token ids and parts of both become the token ids of a prompt or an input, checked."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.base.errors import bad_request
from tidemill.contract.resolve import ContextLengthError, check_input, check_prompt
from tidemill.generation.pace import INLINE, Pace, slices
from tidemill.generation.request import Model, Parts, Source

HEAD_CHARS = 2**15
"""Characters that are always tokenized, whatever the context length."""

CHECKED_AT_ONCE = 2**16
"""Token ids that are checked without a pause."""


async def encode_text(
    model: Model, text: str, param: str, pace: Pace = INLINE, *, add_special: bool = True
) -> tuple[int, ...]:
    """Token ids of a prompt's text.

    A text far beyond the context is rejected after tokenizing only its beginning. Tokens take a
    hundred times the memory of their characters, so a few large bodies could exhaust memory.

    Raises:
        TidemillError: kind BAD_REQUEST naming `param`.
    """
    limit, size = model.info.max_model_len, HEAD_CHARS
    encode = model.tokenizer.encode
    while size < len(text):
        head = len(await pace.short(size, encode, text[:size], add_special=False))
        # Factor 2: at the cut, the tokens may differ from those of the whole text.
        if head > 2 * limit:
            raise ContextLengthError(
                param,
                f"the first {size} of the prompt's {len(text)} characters alone are {head} tokens "
                f"and the context holds {limit}, the output included; shorten the prompt",
            )
        size *= 4
    return tuple(await pace.short(len(text), encode, text, add_special=add_special))


async def encode_source(
    model: Model,
    source: Source,
    param: str,
    pace: Pace = INLINE,
    *,
    output_tokens: int = 1,
    add_special: bool = True,
) -> tuple[int, ...]:
    """Token ids of one prompt or input, checked.

    Args:
        model: the model.
        source: a text, token ids, or parts of both kinds.
        param: names it in errors.
        pace: see `prepare`.
        output_tokens: tokens of output that the context must hold after it.
        add_special: the tokenizer's start (and end) tokens go around a text.
    """
    if isinstance(source, Parts):
        from tidemill.generation.wording import joined  # few requests need it

        source = await joined(model, source, param, pace, add_special=add_special)
    if not source:
        # The model's start token would suffice, but an empty string is probably an error.
        raise bad_request(param, f"{param} is empty")
    if isinstance(source, str):
        ids = await encode_text(model, source, param, pace, add_special=add_special)
        _check_length(model, len(ids), param, output_tokens)
        await pace.pause()  # there may be many
        return ids
    # Before the ids are validated: there may be millions.
    _check_length(model, len(source), param, output_tokens)
    await check_ids(source, model.info.vocab_size, param, pace)
    return tuple(source)


def _check_length(model: Model, count: int, param: str, output_tokens: int) -> None:
    if output_tokens:
        check_prompt(count, model.info.max_model_len, param=param)
    else:
        check_input(count, model.info.max_model_len, param=param)


async def check_ids(
    token_ids: Sequence[int], vocab_size: int, param: str, pace: Pace = INLINE
) -> None:
    """Raise BAD_REQUEST unless all are ids of the vocabulary."""
    async for some in slices(token_ids, CHECKED_AT_ONCE, pace):
        if min(some) < 0 or max(some) >= vocab_size:
            wrong = next(t for t in some if not 0 <= t < vocab_size)
            raise bad_request(
                param, f"{param} holds the token id {wrong}; ids are 0 to {vocab_size - 1}"
            )
    await pace.pause()  # there may be many lists
