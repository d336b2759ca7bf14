"""Tokens of an answer with their logprobs, as several dialects write them.

There is one entry per counted token. The end token has an entry too, although it is not part of the
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.generation.choices import TokenPiece
from tidemill.generation.prepare import Prepared
from tidemill.text.tokenizer import Tokenizer

FLOOR = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""


def check_logprobs(prepared: Prepared, most: int) -> None:
    """Raise where a request asks for the logprobs of more alternatives than the server gives.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(prepared.sampling[0], name)
        if count is not None and count > most:
            raise bad_request(
                name,
                f"{name} asks for those of {count} tokens at each position, and at most {most} are "
                "given; ask for fewer, or start the server with a higher --limit max_logprobs",
            )


def finite(logprob: float) -> float:
    """A logprob as JSON can represent it."""
    return logprob if logprob > FLOOR else FLOOR


def token_entry(piece: bytes, logprob: float) -> dict[str, Any]:
    """A token's text, logprob and bytes."""
    return {"token": piece.decode(errors="replace"), "logprob": finite(logprob), "bytes": [*piece]}


def token_entries(
    tokenizer: Tokenizer, pieces: Sequence[TokenPiece], *, as_ids: bool = False
) -> list[dict[str, Any]]:
    """One entry per token, with the likeliest alternatives.

    Args:
        tokenizer: the vocabulary.
        pieces: the tokens.
        as_ids: tokens are named by their ids; see `id_name`.
    """
    entries = []
    for item in pieces:
        tokens = [(item.logprob.token_id, item.logprob.logprob), *item.logprob.top]
        bytes_of = [item.piece, *(tokenizer.token_bytes(token) for token, _ in item.logprob.top)]
        made = [token_entry(p, v) for p, (_, v) in zip(bytes_of, tokens, strict=True)]
        if as_ids:
            made = [e | {"token": id_name(t)} for e, (t, _) in zip(made, tokens, strict=True)]
        entries.append({**made[0], "top_logprobs": made[1:]})
    return entries


def id_name(token_id: int) -> str:
    """A token's id in place of its text, as vLLM writes it."""
    return f"token_id:{token_id}"
