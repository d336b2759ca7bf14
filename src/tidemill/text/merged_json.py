"""A byte-level BPE vocabulary from a tokenizer.json.

Strict: a file with an unknown key or value in any section is left to the library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.base import _texts
from tidemill.text.merged_parts import BARE, NO_FRAME, Frame, Mark, Parts, Piece
from tidemill.text.word_rules import WORD_RULES

# Settings of a tokenizer.json's model, and their neutral values.
_MODEL_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "dropout": (None,),
    "unk_token": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
}
_SECTIONS = {
    "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
    "post_processor", "decoder", "model",
}  # fmt: skip


def parts_of_json(content: bytes | memoryview) -> Parts | None:
    """The vocabulary's parts; None if it is another kind or cannot be read."""
    spans = _texts.find_model(content)
    if spans is None:
        return None
    texts_begin, texts_end, merges_begin, merges_end = spans
    (first, first_end, one), (last, last_end, other) = sorted(
        [(texts_begin, texts_end, b"{}"), (merges_begin, merges_end, b"[]")]
    )
    rest = (content[:first], one, content[first_end:last], other, content[last_end:])
    try:
        return _parts_of_document(json.loads(b"".join(rest)), content, spans)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # malformed: the library reports the error


def _parts_of_document(
    document: dict[str, Any], content: bytes | memoryview, spans: tuple[int, int, int, int]
) -> Parts | None:
    """The parts, from the document without vocabulary and merges, and from the spans of those."""
    model = document["model"]
    if set(document) != _SECTIONS or document["version"] != "1.0" or model.get("type") != "BPE":
        return None
    if document["truncation"] is not None or document["padding"] is not None:
        return None
    if any(model.get(key) not in values for key, values in _MODEL_DEFAULTS.items()):
        return None
    cuts = _cuts(document["pre_tokenizer"])
    normalizer = document["normalizer"]
    frame = _frame(document["post_processor"])
    if cuts is None or frame is None or normalizer not in (None, {"type": "NFC"}):
        return None
    whole_words = model.get("ignore_merges", False)
    if not isinstance(whole_words, bool):
        return None
    encoder = _texts.Encoder.of_json(content, *spans, whole_words)
    marks = None if encoder is None else _marks(document["added_tokens"], encoder)
    if encoder is None or marks is None:
        return None
    late = [mark for mark, normalized in marks if normalized]
    if late and normalizer is not None:  # the tokens' own texts would need normalization too
        return None
    early = [mark for mark, normalized in marks if not normalized]
    decoder = document["decoder"]
    if not _is_byte_level(decoder):
        return None
    return Parts(encoder, cuts, normalizer is not None, early, late, frame, decoder, [])


def _marks(added: Any, encoder: _texts.Encoder) -> list[tuple[Mark, bool]] | None:
    """Added tokens, and whether each is matched in normalized text."""
    found: list[tuple[Mark, bool]] = []
    following = len(encoder)  # the library's next id for a token that the vocabulary lacks
    texts = set()
    for token in added:
        text, index = token.get("content"), token.get("id")
        if not isinstance(text, str) or not text or text in texts or type(index) is not int:
            return None
        if any(token.get(flag) is not False for flag in ("single_word", "lstrip", "rstrip")):
            return None
        if any(type(token.get(flag)) is not bool for flag in ("normalized", "special")):
            return None
        known = encoder.token_to_id(text)
        if index != (following if known is None else known):
            return None
        following += known is None
        texts.add(text)
        found.append((Mark(text, index, token["special"]), token["normalized"]))
    return found


def _is_byte_level(section: Mapping[str, Any]) -> bool:
    flags = ("add_prefix_space", "trim_offsets", "use_regex")
    return section.get("type") == "ByteLevel" and all(type(section.get(f)) is bool for f in flags)


def _cuts(pre_tokenizer: Any) -> list[tuple[str, bool]] | None:
    """The expressions of a `pre_tokenizer` section that ends in ByteLevel; None for others."""
    if not isinstance(pre_tokenizer, dict):
        return None
    steps = [pre_tokenizer]
    if pre_tokenizer.get("type") == "Sequence":
        steps = pre_tokenizer.get("pretokenizers") or [{}]
    *splits, last = steps
    if not _is_byte_level(last) or last["add_prefix_space"]:
        return None
    cuts = [_cut(step) for step in splits]
    if last["use_regex"]:
        cuts += [(pattern, True) for pattern in WORD_RULES["gpt-2"].patterns]
    known = [cut for cut in cuts if cut is not None]
    return known if len(known) == len(cuts) else None


def _cut(step: Mapping[str, Any]) -> tuple[str, bool] | None:
    kind = step.get("type")
    if kind == "Digits":
        return {True: (r"\p{N}", True), False: (r"\p{N}+", True)}[step["individual_digits"]]
    pattern = step.get("pattern")
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    gaps = {("Isolated", False): True, ("Removed", True): False}.get(
        (step["behavior"], step["invert"])
    )
    if kind != "Split" or not isinstance(expression, str) or gaps is None:
        return None
    return expression, gaps


def _frame(post_processor: Any) -> Frame | None:
    """The tokens that a `post_processor` section adds around texts; None if it is unknown."""
    steps: Sequence[Any] = [post_processor]
    if isinstance(post_processor, dict) and post_processor.get("type") == "Sequence":
        steps = post_processor.get("processors") or [{}]
    if post_processor is None:
        return NO_FRAME
    templates = [s for s in steps if not _is_byte_level(s)]
    if not templates:
        return BARE
    if len(templates) > 1 or templates[0].get("type") != "TemplateProcessing":
        return None
    special: Mapping[str, Mapping[str, Any]] = templates[0]["special_tokens"]
    if any(t.keys() != {"id", "ids", "tokens"} for t in special.values()):
        return None
    single, pair = (
        [_piece(item, special) for item in templates[0][name]] for name in ("single", "pair")
    )
    sound = [p.text for p in single if p.ids is None] == [0]
    return Frame(single, pair) if sound else None


def _piece(item: Mapping[str, Any], special: Mapping[str, Mapping[str, Any]]) -> Piece:
    """An item of a template.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the item is malformed.
    """
    ((kind, part),) = item.items()
    name, token_type = part["id"], part["type_id"]
    if type(token_type) is not int:
        raise TypeError(name)
    if kind == "Sequence":
        return Piece(None, ("A", "B").index(name), token_type)
    ids = special[{"SpecialToken": name}[kind]]["ids"]
    if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise ValueError(name)
    return Piece(list(ids), 0, token_type)
