"""A byte-level BPE vocabulary from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base import _texts
from tidemill.base.text_lists import Texts
from tidemill.text.gguf_vocab import (
    PREFIX,
    Affixes,
    affix_tokens,
    array,
    marked,
    stored,
    token_types,
    unknown_merge,
    word_rule,
)
from tidemill.text.merged_parts import BARE, NO_FRAME, Frame, Mark, Parts, Piece


def parts_of_gguf(gguf: Mapping[str, Any]) -> Parts | None:
    """The vocabulary's parts; None for another kind, or if the library must report the error.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED for invalid or unsupported metadata.
    """
    if gguf.get(PREFIX + "model") != "gpt2":
        return None
    rule, notes = word_rule(gguf)
    tokens = stored(gguf, "tokens")
    if rule.raw or not tokens:
        return None
    types = token_types(gguf, len(tokens))
    texts, merges = _as_texts(gguf, "tokens"), _as_texts(gguf, "merges")
    if texts is None or merges is None:
        return None
    encoder = _texts.Encoder.of_texts(texts.packed, merges.packed, rule.whole_words)
    if isinstance(encoder, int):
        raise unknown_merge(merges[encoder])
    if encoder is None or len(encoder) < len(tokens):  # a token's text occurs twice
        return None
    marks = [Mark(tokens[i], i, special) for i, special in marked(types) if tokens[i]]
    before, after = affix_tokens(gguf, Affixes(bos=rule.add_bos))
    frame = _framed(encoder, before, after)
    cuts = [(pattern, True) for pattern in rule.patterns]
    return Parts(encoder, cuts, rule.nfc, marks, [], frame, {"type": "ByteLevel"}, notes)


def _framed(encoder: _texts.Encoder, before: str | None, after: str | None) -> Frame:
    """Add the tokens, if any, around a single text; pairs get none."""
    ids = [None if token is None else encoder.token_to_id(token) for token in (before, after)]
    first, last = ([] if i is None else [Piece([i], 0, 0)] for i in ids)
    return Frame([*first, *BARE.single, *last], BARE.pair) if first or last else NO_FRAME


def _as_texts(gguf: Mapping[str, Any], name: str) -> Texts | None:
    """A list of the metadata as packed texts; None if an entry is not valid Unicode."""
    found = stored(gguf, name)
    if isinstance(found, Texts):
        return found
    try:
        return Texts.of(array(gguf, name))
    except UnicodeEncodeError:
        return None
