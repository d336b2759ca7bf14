"""Byte-level BPE vocabularies, kept and encoded by our own C++: a tenth of the library's memory,
six times its speed, and the same ids. What a vocabulary has that is not known here, down to the
last setting, leaves it to the library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.base import _texts
from tidemill.base.text_lists import Texts
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.text.gguf_vocab import (
    PREFIX,
    SPECIAL_TYPES,
    USER_DEFINED,
    Affixes,
    affix_tokens,
    array,
    stored,
    token_types,
    unknown_merge,
    word_rule,
)
from tidemill.text.vocabulary import gave_up, no_unicode
from tidemill.text.word_rules import WORD_RULES

# Settings of a tokenizer.json's model, and the values that are as if they were not there.
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
_NO_FRAME = Frame([Piece(None, 0, 0)], [Piece(None, 0, 0), Piece(None, 1, 0)])
_BARE = Frame([Piece(None, 0, 0)], [Piece(None, 0, 0), Piece(None, 1, 1)])


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


def open_merged(data: TokenizerData) -> MergedVocabulary | None:
    """The vocabulary, if it is one of these; None leaves it, and its errors, to the library.

    Raises:
        TidemillError: MODEL_FILE, UNSUPPORTED for what a GGUF file says of it.
    """
    parts = None
    if data.tokenizer_json is not None:
        parts = _parts_of_json(data.tokenizer_json)
    elif data.gguf is not None and data.gguf.get(PREFIX + "model") == "gpt2":
        parts = _parts_of_gguf(data.gguf)
    if parts is None or not parts.encoder.set_cuts(parts.cuts):
        return None
    return MergedVocabulary(parts)


class MergedVocabulary:
    """See `Vocabulary`.

    Args:
        parts: whose cuts the encoder has.
    """

    def __init__(self, parts: Parts) -> None:
        self._encoder = parts.encoder
        self._encoder.set_marks(parts.early, parts.late)
        marks = [*parts.early, *parts.late]
        self._nfc = parts.nfc
        self._pair = parts.frame.pair
        self._always_literally = False
        self._added = {mark.id: mark.text for mark in marks}
        self._added_ids = {mark.text: mark.id for mark in marks}
        missing = sum(self._encoder.token_to_id(text) is None for text in self._added_ids)
        self.size = len(self._encoder) + missing
        self.added = {mark.id: mark.special for mark in marks}
        self.decoder: dict[str, Any] | None = parts.decoder
        self.prefix, self.suffix = _around(parts.frame.single)
        self.notes = parts.notes

    def encode(self, text: str, *, literally: bool) -> list[int]:
        """See `Vocabulary`."""
        literally = literally or self._always_literally
        try:
            if self._nfc and not text.isascii() and not _is_nfc(text):
                return self._encode_normalized(text, literally)
            return self._encoder.encode(text, literally)
        except UnicodeEncodeError as error:
            raise no_unicode() from error
        except RuntimeError as error:
            raise gave_up(len(text), error) from error

    def _encode_normalized(self, text: str, literally: bool) -> list[int]:
        # By the library's own table: it and Python's differ in the newest characters.
        from tokenizers.normalizers import NFC

        normalize = NFC().normalize_str
        ids: list[int] = []
        for part in self._encoder.split(text, literally):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encoder.encode(normalize(part), literally, normalized=True)
        return ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """See `Vocabulary`."""
        texts = [self.encode(text, literally=False) for text in (first, second)]
        ids: list[int] = []
        types: list[int] = []
        for piece in self._pair:
            part = texts[piece.text] if piece.ids is None else piece.ids
            ids += part
            types += [piece.type] * len(part)
        return ids, types

    def only_literally(self) -> None:
        """See `Vocabulary`."""
        self._always_literally = True

    def id_to_token(self, token_id: int) -> str | None:
        """See `Vocabulary`."""
        if token_id in self._added:
            return self._added[token_id]
        return self._encoder.id_to_token(token_id) if 0 <= token_id < 2**31 else None

    def token_to_id(self, token: str) -> int | None:
        """See `Vocabulary`."""
        found = self._added_ids.get(token)
        return self._encoder.token_to_id(token) if found is None else found


def _is_nfc(text: str) -> bool:
    from unicodedata import is_normalized  # a megabyte that English does without

    return is_normalized("NFC", text)


def _parts_of_gguf(gguf: Mapping[str, Any]) -> Parts | None:
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
    if encoder is None or len(encoder) < len(tokens):  # a text that is there twice
        return None
    marks = [
        Mark(tokens[i], i, kind in SPECIAL_TYPES)
        for i, kind in enumerate(types)
        if kind != 1 and (kind in SPECIAL_TYPES or kind == USER_DEFINED) and tokens[i]
    ]
    before, after = affix_tokens(gguf, Affixes(bos=rule.add_bos))
    frame = _framed(encoder, before, after)
    cuts = [(pattern, True) for pattern in rule.patterns]
    return Parts(encoder, cuts, rule.nfc, marks, [], frame, {"type": "ByteLevel"}, notes)


def _framed(encoder: _texts.Encoder, before: str | None, after: str | None) -> Frame:
    """One text between tokens, if there are any; two stand for themselves."""
    ids = [None if token is None else encoder.token_to_id(token) for token in (before, after)]
    first, last = ([] if i is None else [Piece([i], 0, 0)] for i in ids)
    return Frame([*first, *_BARE.single, *last], _BARE.pair) if first or last else _NO_FRAME


def _as_texts(gguf: Mapping[str, Any], name: str) -> Texts | None:
    """A list of the metadata as bytes; None where it holds what is no text."""
    found = stored(gguf, name)
    if isinstance(found, Texts):
        return found
    try:
        return Texts.of(array(gguf, name))
    except UnicodeEncodeError:
        return None


def _parts_of_json(content: bytes | memoryview) -> Parts | None:
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
        return None  # not of the shape it should have: the library says what is wrong


def _parts_of_document(
    document: dict[str, Any], content: bytes | memoryview, spans: tuple[int, int, int, int]
) -> Parts | None:
    """The parts, from all of the document but texts and merges, and from where those stand."""
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
    if late and normalizer is not None:  # their own spelling would have to be normalized too
        return None
    early = [mark for mark, normalized in marks if not normalized]
    decoder = document["decoder"]
    if not _is_byte_level(decoder):
        return None
    return Parts(encoder, cuts, normalizer is not None, early, late, frame, decoder, [])


def _marks(added: Any, encoder: _texts.Encoder) -> list[tuple[Mark, bool]] | None:
    """Added tokens, and whether each is found in normalized text."""
    found: list[tuple[Mark, bool]] = []
    following = len(encoder)  # the id that the library gives to a token the vocabulary lacks
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
    """The expressions of a `pre_tokenizer` section that ends in ByteLevel; None for another."""
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
    """What a `post_processor` section puts around texts; None where it is not known."""
    steps: Sequence[Any] = [post_processor]
    if isinstance(post_processor, dict) and post_processor.get("type") == "Sequence":
        steps = post_processor.get("processors") or [{}]
    if post_processor is None:
        return _NO_FRAME
    templates = [s for s in steps if not _is_byte_level(s)]
    if not templates:
        return _BARE
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
        AttributeError, KeyError, TypeError, ValueError: it is none.
    """
    ((kind, part),) = item.items()
    name, token_type = part["id"], int(part["type_id"])
    if kind == "Sequence":
        return Piece(None, ("A", "B").index(name), token_type)
    ids = special[{"SpecialToken": name}[kind]]["ids"]
    if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise ValueError(name)
    return Piece(list(ids), 0, token_type)


def _around(single: list[Piece]) -> tuple[list[int], list[int]]:
    """Ids before and behind the text."""
    place = next(i for i, piece in enumerate(single) if piece.ids is None)
    before, after = (
        [i for piece in side for i in piece.ids or ()] for side in (single[:place], single[place:])
    )
    return before, after
