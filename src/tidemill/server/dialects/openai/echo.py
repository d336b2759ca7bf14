"""The prompt of a completion, repeated before its output; and token ids as text, in slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.generation.pace import slices
from tidemill.generation.request import Source
from tidemill.server.host.pace import LOOP
from tidemill.text.detokenizer import Detokenizer
from tidemill.text.tokenizer import Tokenizer

DECODED_AT_ONCE = 4096
"""Tokens that are decoded without yielding to the event loop."""


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt as it is repeated in the output.

    Attributes:
        text: the prompt's text.
        token_ids: its tokens, where they are located.
        pieces: bytes of each of its tokens.
        offsets: characters of `text` before each of them.
    """

    text: str
    token_ids: Sequence[int]
    pieces: tuple[bytes, ...]
    offsets: tuple[int, ...]


async def echo_prompt(
    tokenizer: Tokenizer, source: Source, token_ids: Sequence[int], *, pieces: bool
) -> EchoedPrompt:
    """A prompt as `echo` repeats it: a string as it was sent, token ids decoded.

    Args:
        pieces: also locate each token, for logprobs. Start tokens that encoding added have no
            characters in the string.
    """
    text = source if isinstance(source, str) else await decode_ids(tokenizer, token_ids)
    if not pieces:
        return EchoedPrompt(text, (), (), ())
    # Special tokens written out in a string are part of its text.
    spelled = isinstance(source, str)
    added = _count_start_tokens(tokenizer, token_ids) if spelled else 0
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=not spelled, at_start=True)
    offsets, length = [0] * added, 0
    async for tokens in slices(token_ids[added:], DECODED_AT_ONCE, LOOP):
        for token in tokens:
            offsets.append(min(length, len(text)))
            length += len(detokenizer.push((token,)))
    pieces_of = tuple(tokenizer.token_bytes(t) for t in token_ids)
    return EchoedPrompt(text, token_ids, pieces_of, tuple(offsets))


def _count_start_tokens(tokenizer: Tokenizer, token_ids: Sequence[int]) -> int:
    lengths = range(1, min(8, len(token_ids)) + 1)
    return next((k for k in lengths if tokenizer.starts_with_special(token_ids[:k])), 0)


async def decode_ids(
    tokenizer: Tokenizer, token_ids: Sequence[int], *, skip_special_tokens: bool = True
) -> str:
    """`Tokenizer.decode` in slices."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    parts = [detokenizer.push(some) async for some in slices(token_ids, DECODED_AT_ONCE, LOOP)]
    return "".join((*parts, detokenizer.finish()))
