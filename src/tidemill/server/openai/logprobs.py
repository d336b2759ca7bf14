"""Logprobs in OpenAI's two formats.

There is one entry per counted token, the end token included: its spelling stands in the entry
although it is no part of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.contract.request import TokenLogprob
from tidemill.server.generation import TokenPiece
from tidemill.text.tokenizer import Tokenizer

PromptLogprobs = list[dict[str, dict[str, Any]] | None]

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


def _finite(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR


def _chat_token(piece: bytes, logprob: float) -> dict[str, Any]:
    return {
        "token": piece.decode(errors="replace"),
        "logprob": _finite(logprob),
        "bytes": list(piece),
    }


def chat_entries(tokenizer: Tokenizer, pieces: Sequence[TokenPiece]) -> list[dict[str, Any]]:
    """Entries of a chat choice's `logprobs.content`."""
    entries = []
    for item in pieces:
        entry = _chat_token(item.piece, item.logprob.logprob)
        entry["top_logprobs"] = [
            _chat_token(tokenizer.token_bytes(token), value) for token, value in item.logprob.top
        ]
        entries.append(entry)
    return entries


def spelled(piece: bytes) -> str:
    """A token as text; one that is no whole character as ``bytes:\\xe2\\x80``."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def prompt_entries(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob | None]) -> PromptLogprobs:
    """A prompt's `prompt_logprobs`: per token, by token id, itself and the likeliest alternatives.

    `rank` is 1 for the likeliest token, and null where the token is not among the alternatives that
    were asked for. The first token of a prompt has no logprob.
    """
    found: PromptLogprobs = []
    for item in logprobs:
        if item is None:
            found.append(None)
            continue
        entry = {}
        for rank, (token, value) in enumerate(item.top, 1):
            entry[str(token)] = _ranked(tokenizer, token, value, rank)
        key = str(item.token_id)
        entry.setdefault(key, _ranked(tokenizer, item.token_id, item.logprob, None))
        found.append(entry)
    return found


def _ranked(tokenizer: Tokenizer, token: int, value: float, rank: int | None) -> dict[str, Any]:
    return {
        "logprob": _finite(value),
        "rank": rank,
        "decoded_token": spelled(tokenizer.token_bytes(token)),
    }


class CompletionLogprobs:
    """The parallel lists of a completions choice's `logprobs`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.tokens: list[str] = []
        self.token_logprobs: list[float | None] = []
        self.top_logprobs: list[dict[str, float] | None] = []
        self.text_offset: list[int] = []

    def add(self, piece: bytes, logprob: TokenLogprob | None, offset: int) -> None:
        """Append a token; `logprob` is None for the first token of a prompt."""
        token = spelled(piece)
        self.tokens.append(token)
        self.text_offset.append(offset)
        if logprob is None:
            self.token_logprobs.append(None)
            self.top_logprobs.append(None)
            return
        self.token_logprobs.append(_finite(logprob.logprob))
        top: dict[str, float] = {}
        for token_id, value in logprob.top:
            # Two tokens can be spelled alike; the likelier one keeps the place.
            top.setdefault(spelled(self._tokenizer.token_bytes(token_id)), _finite(value))
        top.setdefault(token, _finite(logprob.logprob))
        self.top_logprobs.append(top)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
