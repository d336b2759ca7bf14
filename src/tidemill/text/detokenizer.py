"""Incremental detokenization, which never emits an incomplete character."""

from __future__ import annotations

from _codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from typing import Protocol


class TokenTexts(Protocol):
    """The tokenizer interface that decoding needs: the bytes of each token.

    Attributes:
        strip: number of leading spaces that decoding removes from a whole text.
    """

    strip: int

    def pieces(self, *, skip_special_tokens: bool, kept: frozenset[int]) -> Mapping[int, bytes]:
        """The bytes of each token id; see `Tokenizer.pieces`."""
        ...


class Detokenizer:
    """Incremental decoding of one sequence.

    Invariant: however a sequence of ids is split into pushes, the concatenation of the returned
    texts and `finish()` equals the one-shot decoding. Bytes that may still become a character are
    held back. Invalid bytes become U+FFFD, one per maximal invalid part.

    Args:
        tokenizer: the vocabulary.
        skip_special_tokens: special tokens add no text.
        kept: special tokens that do; see `Tokenizer.pieces`.
        unspaced: bytes of special tokens without a space before them, used where the token before
            is special, too; None: tokens look the same everywhere.
        at_start: the sequence begins a text, so a SentencePiece model's dummy leading space is
            removed; False for a continuation of a prompt, where that space is real.
    """

    __slots__ = ("_after_special", "_held", "_pieces", "_strip", "_unspaced")

    def __init__(
        self,
        tokenizer: TokenTexts,
        *,
        skip_special_tokens: bool = True,
        kept: frozenset[int] = frozenset(),
        at_start: bool = True,
        unspaced: Mapping[int, bytes] | None = None,
    ) -> None:
        self._pieces = tokenizer.pieces(skip_special_tokens=skip_special_tokens, kept=kept)
        self._held = b""
        self._unspaced, self._after_special = unspaced, False
        self._strip = tokenizer.strip if at_start else 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Add tokens; return the text that is final."""
        pieces = self._pieces
        if self._unspaced is not None:
            data = self._held + b"".join(map(self._piece, token_ids))
        elif len(token_ids) == 1:
            data = self._held + pieces[token_ids[0]]
        else:
            data = self._held + b"".join([pieces[i] for i in token_ids])
        return self._decode(data, False)

    def _piece(self, token_id: int) -> bytes:
        """The bytes of the next token, where special tokens have no spaces between them."""
        assert self._unspaced is not None
        piece = self._pieces[token_id]
        special = token_id in self._unspaced
        if special and self._after_special and piece:
            piece = self._unspaced[token_id]
        self._after_special = special
        return piece

    def finish(self) -> str:
        """End the sequence; return the text of the bytes held back."""
        return self._decode(self._held, True)

    @property
    def held_bytes(self) -> int:
        """Number of bytes of an incomplete character."""
        return len(self._held)

    def _decode(self, data: bytes, final: bool) -> str:
        text, used = utf_8_decode(data, "replace", final)
        self._held = data[used:]
        if self._strip and text:
            text = self._without_prefix(text)
        return text

    def _without_prefix(self, text: str) -> str:
        cut = 0
        while cut < min(self._strip, len(text)) and text[cut] == " ":
            cut += 1
        # Any other character ends the prefix permanently.
        self._strip = self._strip - cut if cut == len(text) else 0
        return text[cut:]
