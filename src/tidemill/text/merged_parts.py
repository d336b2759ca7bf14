"""What a byte-level BPE vocabulary consists of, wherever it was read."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemill.base import _texts


class Mark(NamedTuple):
    """A token that is found in the text before it is cut into words."""

    text: str
    id: int
    special: bool


class Piece(NamedTuple):
    """A part of what is made of one or two texts.

    Attributes:
        ids: what stands there; None for a text.
        text: which one, 0 or 1.
        type: of its tokens.
    """

    ids: list[int] | None
    text: int
    type: int


class Frame(NamedTuple):
    """What stands around one text, and around two."""

    single: list[Piece]
    pair: list[Piece]


# Where nothing is said, and where it is said that nothing is put around texts.
NO_FRAME = Frame([Piece(None, 0, 0)], [Piece(None, 0, 0), Piece(None, 1, 0)])
BARE = Frame([Piece(None, 0, 0)], [Piece(None, 0, 0), Piece(None, 1, 1)])


class Parts(NamedTuple):
    """A vocabulary, read.

    Attributes:
        encoder: texts and merges.
        cuts: expressions that cut text into words one after another; False beside one where what
            stands between its matches is no word.
        nfc: text between marks is brought to normalization form C first.
        early, late: marks that are found before and after that.
        frame: what stands around texts.
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
