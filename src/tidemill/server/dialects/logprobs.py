"""Tokens of an answer with their logprobs, as several dialects write them.

There is one entry per counted token. The end token has an entry too, although it is not part of the
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.generation.choices import TokenPiece
from tidemill.text.tokenizer import Tokenizer

FLOOR = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""


def finite(logprob: float) -> float:
    """A logprob as JSON can represent it."""
    return logprob if logprob > FLOOR else FLOOR


def token_entry(piece: bytes, logprob: float) -> dict[str, Any]:
    """A token's text, logprob and bytes."""
    return {"token": piece.decode(errors="replace"), "logprob": finite(logprob), "bytes": [*piece]}


def token_entries(tokenizer: Tokenizer, pieces: Sequence[TokenPiece]) -> list[dict[str, Any]]:
    """One entry per token, with the likeliest alternatives."""
    entries = []
    for item in pieces:
        entry = token_entry(item.piece, item.logprob.logprob)
        entry["top_logprobs"] = [
            token_entry(tokenizer.token_bytes(token), value) for token, value in item.logprob.top
        ]
        entries.append(entry)
    return entries
