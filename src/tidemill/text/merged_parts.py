"""The parts of a byte-level BPE vocabulary, independent of its file format."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemill.base import _texts


class Mark(NamedTuple):
    """A token that is matched in the text before pre-tokenization."""

    text: str
    id: int
    special: bool


class Piece(NamedTuple):
    """A part of an encoded input: special tokens or one of the texts.

    Attributes:
        ids: the special tokens; None for a text.
        text: the index of the text, 0 or 1.
        type: the token type id.
    """

    ids: list[int] | None
    text: int
    type: int


class Frame(NamedTuple):
    """The layout of an encoded single text, and of an encoded pair."""

    single: list[Piece]
    pair: list[Piece]


# Without a post-processor, and with one that adds no tokens (it gives the second text type 1).
NO_FRAME = Frame([Piece(None, 0, 0)], [Piece(None, 0, 0), Piece(None, 1, 0)])
BARE = Frame([Piece(None, 0, 0)], [Piece(None, 0, 0), Piece(None, 1, 1)])


class Parts(NamedTuple):
    """A parsed vocabulary.

    Attributes:
        encoder: vocabulary and merges.
        cuts: pre-tokenization expressions, applied one after another. The flag is False if the text
            between an expression's matches is removed.
        nfc: text between marks is normalized to NFC first.
        early, late: marks matched before and after normalization.
        frame: the special tokens around texts.
        decoder, notes: see `Vocabulary`.
    """

    encoder: _texts.Encoder
    cuts: list[tuple[str, bool]]
    nfc: bool
    early: list[Mark]
    late: list[Mark]
    frame: Frame
    decoder: dict[str, Any]
    notes: list[str]
