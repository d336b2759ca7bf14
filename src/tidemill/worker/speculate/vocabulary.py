"""Whether two models have the same vocabulary: drafts are token ids."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.base.tokenizer_data import TokenizerData


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Model(msgspec.Struct):
    vocab: Any = None


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []


def token_strings(data: TokenizerData) -> dict[int, str]:
    """Id -> the token as its file spells it; empty for a model without a vocabulary."""
    if data.tokenizer_json is not None:
        try:
            file = msgspec.json.decode(data.tokenizer_json, type=_Tokenizer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}  # whoever uses the tokenizer says what is wrong with it
        vocab = file.model.vocab
        if isinstance(vocab, dict):
            found = {number: token for token, number in vocab.items()}
        else:  # Unigram: pairs of token and score
            found = {i: pair[0] for i, pair in enumerate(vocab or ())}
        return found | {added.id: added.content for added in file.added_tokens}
    if data.gguf is not None:
        return dict(enumerate(data.gguf.get("tokenizer.ggml.tokens", ())))
    return {}


_CONTROL = 3  # of GGUF's types of tokens


def special_ids(data: TokenizerData) -> list[int]:
    """Ids of the tokens that are no text (ends, turns), in ascending order."""
    if data.tokenizer_json is not None:
        try:
            file = msgspec.json.decode(data.tokenizer_json, type=_Tokenizer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []
        return sorted(added.id for added in file.added_tokens if added.special)
    types = (data.gguf or {}).get("tokenizer.ggml.token_type", ())
    return [i for i, kind in enumerate(types) if kind == _CONTROL]


def difference(one: TokenizerData, other: TokenizerData) -> str:
    """Where two vocabularies differ, in words; empty if they agree on every id that both have."""
    if one.tokenizer_json is not None and one.tokenizer_json == other.tokenizer_json:
        return ""
    ours, theirs = token_strings(one), token_strings(other)
    if not ours or not theirs:
        return "" if bool(ours) == bool(theirs) else "one of them has no vocabulary"
    for number in sorted(ours.keys() & theirs.keys()):
        if ours[number] != theirs[number]:
            return f"token {number} is {ours[number]!r} in one and {theirs[number]!r} in the other"
    only = sorted(ours.keys() ^ theirs.keys())
    # Files pad their vocabularies to different lengths; a tenth more tokens is another vocabulary.
    if len(only) > max(len(ours), len(theirs)) // 10:
        return f"one has {len(ours)} tokens, the other {len(theirs)}"
    return ""
