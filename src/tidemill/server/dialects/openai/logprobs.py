"""Logprobs in OpenAI's two formats; see also `server.dialects.logprobs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tidemill.contract.request import TokenLogprob
from tidemill.generation.choices import TokenPiece
from tidemill.generation.pace import slices
from tidemill.server.dialects.logprobs import finite, id_name, token_entries
from tidemill.server.host.pace import LOOP
from tidemill.server.transport.sink import Piece
from tidemill.text.tokenizer import Tokenizer

encode = msgspec.json.encode

SLICE = 64
"""Prompt tokens, with alternatives, that are encoded without yielding to the event loop."""


def chat_entries(
    tokenizer: Tokenizer, pieces: Sequence[TokenPiece], *, as_ids: bool = False
) -> bytes:
    """Entries of a chat choice's `logprobs.content`, encoded: a list without its brackets."""
    return encode(token_entries(tokenizer, pieces, as_ids=as_ids))[1:-1]


def spelled(piece: bytes) -> str:
    """A token as text; one with incomplete characters as ``bytes:\\xe2\\x80``."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


async def prompt_entries(
    tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob | None]
) -> list[Piece]:
    """A prompt's `prompt_logprobs`, encoded in pieces: for each token a map by token id of
    itself and the likeliest alternatives.

    `rank` is 1 for the likeliest token, and null where the token is not among the requested
    alternatives. The first token of a prompt has no logprob.
    """
    found: list[Piece] = []
    async for some in slices(logprobs, SLICE, LOOP):
        found += (b"," if found else b"[", encode([_entry(tokenizer, i) for i in some])[1:-1])
    return [*found, b"]"] if found else [b"[]"]


def _entry(tokenizer: Tokenizer, item: TokenLogprob | None) -> dict[str, dict[str, Any]] | None:
    if item is None:
        return None
    entry = {}
    for rank, (token, value) in enumerate(item.top, 1):
        entry[str(token)] = _ranked(tokenizer, token, value, rank)
    key = str(item.token_id)
    entry.setdefault(key, _ranked(tokenizer, item.token_id, item.logprob, None))
    return entry


def _ranked(tokenizer: Tokenizer, token: int, value: float, rank: int | None) -> dict[str, Any]:
    return {
        "logprob": finite(value),
        "rank": rank,
        "decoded_token": spelled(tokenizer.token_bytes(token)),
    }


LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class CompletionLogprobs:
    """The parallel lists of a completions choice's `logprobs`, encoded as they grow.

    Args:
        tokenizer: the vocabulary.
        prefix: lists of an echoed prompt, shared by choices, that precede these.
        as_ids: tokens are named by their ids; see `id_name`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prefix: CompletionLogprobs | None = None,
        *,
        as_ids: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._prefix = prefix
        self._texts = {name: bytearray() for name in LISTS}  # without brackets

    def __bool__(self) -> bool:
        return bool(self._texts["tokens"] or self._prefix)

    def _name(self, token_id: int, piece: bytes) -> str:
        return id_name(token_id) if self._as_ids else spelled(piece)

    def add(self, token_id: int, piece: bytes, logprob: TokenLogprob | None, offset: int) -> None:
        """Append a token; `logprob` is None for the first token of a prompt."""
        token = self._name(token_id, piece)
        number: float | None = None
        top: dict[str, float] | None = None
        if logprob is not None:
            number, top = finite(logprob.logprob), {}
            for other, value in logprob.top:
                # Two tokens can have the same text; the likelier one wins.
                name = self._name(other, self._tokenizer.token_bytes(other))
                top.setdefault(name, finite(value))
            top.setdefault(token, number)
        values: tuple[object, ...] = (token, number, top, offset)
        for text, member in zip(self._texts.values(), values, strict=True):
            if text:
                text += b","
            text += encode(member)

    async def add_prompt(
        self, prompt: Sequence[tuple[int, bytes, int]], logprobs: Sequence[TokenLogprob | None]
    ) -> None:
        """Append the tokens of a prompt, each with its bytes and its offset, in slices."""
        async for some in slices(list(zip(prompt, logprobs, strict=True)), SLICE, LOOP):
            for (token_id, piece, offset), logprob in some:
                self.add(token_id, piece, logprob, offset)

    def pieces(self) -> dict[str, list[Piece]]:
        """Each list's JSON text in pieces."""
        found: dict[str, list[Piece]] = {}
        for name, text in self._texts.items():
            before = self._prefix._texts[name] if self._prefix is not None else b""
            between = b"," if before and text else b""
            found[name] = [b"[", before, between, text, b"]"]
        return found

    def encoded(self) -> bytes:
        """The JSON object."""
        lists = (encode(name) + b":" + b"".join(pieces) for name, pieces in self.pieces().items())
        return b"{" + b",".join(lists) + b"}"
