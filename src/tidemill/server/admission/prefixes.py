"""Common prefixes of prompts in flight, which are computed and held once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PIECE_TOKENS = 64
"""Prefixes are compared in pieces of this many tokens; a remainder is not shared."""


@dataclass(slots=True)
class _Piece:
    holders: int = 0
    owned: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """Hashes of a prompt's pieces, in order; other prompts own the first `shared` of them."""

    pieces: tuple[int, ...]
    shared: int

    @property
    def shared_tokens(self) -> int:
        """Tokens that other prompts own."""
        return self.shared * PIECE_TOKENS


class Prefixes:
    """The prompts in flight, in pieces whose computation they can share.

    The first request with a piece owns its tokens. They are `orphaned` once that request has ended
    while others still hold the piece.

    Attributes:
        orphaned: tokens of held pieces whose owner has ended.
    """

    def __init__(self) -> None:
        self.orphaned = 0
        self._pieces: dict[int, _Piece] = {}

    def look_up(self, salt: str, prompts: Sequence[tuple[int, ...]]) -> list[Held]:
        """What each prompt would share with prompts in flight and with those before it in the list.

        Args:
            salt: prompts with different salts share nothing.
            prompts: token ids.
        """
        found, brought = [], set[int]()
        for prompt in prompts:
            pieces, last = [], hash(salt)
            for end in range(PIECE_TOKENS, len(prompt) + 1, PIECE_TOKENS):
                last = hash((last, prompt[end - PIECE_TOKENS : end]))
                pieces.append(last)
            there = (piece in self._pieces or piece in brought for piece in pieces)
            shared = next((i for i, known in enumerate(there) if not known), len(pieces))
            brought.update(pieces[shared:])
            found.append(Held(tuple(pieces), shared))
        return found

    def hold(self, held: Held) -> None:
        """Register a prompt: directly after its `look_up`, and in the same order."""
        for piece in held.pieces:
            self._pieces.setdefault(piece, _Piece()).holders += 1

    def release(self, held: Held) -> None:
        """Unregister a prompt whose request has ended."""
        for i, name in enumerate(held.pieces):
            piece = self._pieces[name]
            piece.holders -= 1
            if i >= held.shared:
                piece.owned = False
                self.orphaned += PIECE_TOKENS
            if not piece.holders:
                del self._pieces[name]
                self.orphaned -= 0 if piece.owned else PIECE_TOKENS
