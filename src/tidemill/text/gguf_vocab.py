"""The vocabulary in a GGUF file's metadata, as a tokenizer of the `tokenizers` library.

Five kinds are read: ``gpt2`` (byte-level BPE with merges; ``tokenizer.ggml.pre`` names the rule
that cuts text into words), ``gemma4`` (BPE with merges over characters, with byte fallback),
``llama`` (SentencePiece BPE: pieces with scores and byte fallback), ``t5`` (SentencePiece unigram)
and ``bert`` (WordPiece). Format: the GGUF specification, section "Tokenizer".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from tidemill.base import _texts
from tidemill.base.errors import TidemillError, model_file_error, unsupported
from tidemill.text.word_rules import WORD_RULES, WordRule

_PREFIX = "tokenizer.ggml."
# Values of tokenizer.ggml.token_type.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
MAX_PIECE_CHARS = 512
# What an array's entries are; texts where nothing is said.
_ENTRIES: dict[str, set[type]] = {
    "token_type": {int}, "scores": {int, float}, "precompiled_charsmap": {int},
}  # fmt: skip
_SPECIAL_TYPES = frozenset({_UNKNOWN, _CONTROL})

# The specification's key -> the role's name in tokenizer_config.json.
_ROLES = {
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "padding_token_id": "pad_token",
    "separator_token_id": "sep_token",
    "seperator_token_id": "sep_token",  # written so by old converters
    "cls_token_id": "cls_token",
    "mask_token_id": "mask_token",
    "eot_token_id": "eot_token",
    "eom_token_id": "eom_token",
}

_DEFAULT_NOTE = (
    "the GGUF file does not name its word rule (tokenizer.ggml.pre is missing or 'default'): "
    "GPT-2's is used, and token ids may differ from the original model's; "
    "convert the file again with a current converter"
)


class Affixes(NamedTuple):
    """What stands around plain text unless the metadata says otherwise."""

    bos: bool = False
    eos: bool = False
    sep: bool = False


def special_tokens(gguf: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role (``bos_token``), from the ids in the metadata.

    Raises:
        TidemillError: kind MODEL_FILE if an id is not in the vocabulary.
    """
    tokens = _stored(gguf, "tokens")
    found: dict[str, str] = {}
    for key, role in _ROLES.items():
        value = gguf.get(_PREFIX + key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(tokens):
            raise model_file_error(
                f"{_PREFIX}{key} is {value!r:.40}, but the vocabulary has {len(tokens)} tokens",
                param=_PREFIX + key,
            )
        found[role] = tokens[value]
    return found


def tokenizer_from_gguf(gguf: Mapping[str, Any]) -> tuple[Tokenizer, list[str]]:
    """Build the tokenizer; returns it with notes for people (empty if there is nothing to say).

    Args:
        gguf: the file's ``tokenizer.*`` metadata, arrays as lists.

    Raises:
        TidemillError: kind MODEL_FILE if the metadata is incomplete or contradicts itself;
            UNSUPPORTED for a vocabulary kind or word rule we do not know.
    """
    kind = gguf.get(_PREFIX + "model")
    builders = {
        "gpt2": _merged, "gemma4": _merged, "llama": _sentencepiece, "t5": _unigram,
        "bert": _wordpiece,
    }  # fmt: skip
    if not isinstance(kind, str) or kind not in builders:
        raise unsupported(
            _PREFIX + "model",
            f"the GGUF file's vocabulary is of kind {kind!r}; supported are {', '.join(builders)}",
        )
    tokens = _array(gguf, "tokens")
    if not tokens:
        raise model_file_error("the GGUF file's vocabulary is empty", param=_PREFIX + "tokens")
    types = _array(gguf, "token_type", len(tokens)) or [1] * len(tokens)
    notes: list[str] = []
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(vocab) < len(tokens):
        notes.append(
            f"{len(tokens) - len(vocab)} tokens of the GGUF vocabulary repeat another one's text; "
            "the last of each is used"
        )
    tokenizer, affixes = builders[kind](gguf, tokens, vocab, notes)
    added = [
        AddedToken(token, special=kind in _SPECIAL_TYPES, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if token and (kind in _SPECIAL_TYPES or kind == _USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    _add_affixes(tokenizer, gguf, affixes)
    return tokenizer, notes


def _stored(gguf: Mapping[str, Any], name: str) -> Sequence[Any]:
    """A list that a vocabulary needs, as the metadata have it."""
    value = gguf.get(_PREFIX + name)
    if value is None:
        raise model_file_error(
            f"the GGUF file has no {_PREFIX}{name}: it carries no vocabulary; "
            "use a file made with its tokenizer",
            param=_PREFIX + name,
        )
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise model_file_error(f"{_PREFIX}{name} is no list", param=_PREFIX + name)
    return value


def _array(gguf: Mapping[str, Any], name: str, length: int | None = None) -> list[Any]:
    """An array of the metadata as a list; empty if it is absent and `length` is given."""
    if length is not None and gguf.get(_PREFIX + name) is None:
        return []
    values = list(_stored(gguf, name))
    if length is not None and len(values) != length:
        raise model_file_error(
            f"{_PREFIX}{name} has {len(values)} entries for {length} tokens", param=_PREFIX + name
        )
    if not set(map(type, values)) <= _ENTRIES.get(name, {str}):
        raise model_file_error(
            f"{_PREFIX}{name} holds entries of another type than it should", param=_PREFIX + name
        )
    return values


def _merged(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], notes: list[str]
) -> tuple[Tokenizer, Affixes]:
    """BPE with merges, by a word rule."""
    kind = gguf[_PREFIX + "model"]
    name = "gemma4" if kind == "gemma4" else str(gguf.get(_PREFIX + "pre", "default"))
    rule = WORD_RULES.get(name)
    if name == "default":
        rule = WORD_RULES["gpt-2"]
        notes.append(_DEFAULT_NOTE)
    if rule is None:
        raise unsupported(
            _PREFIX + "pre",
            f"the GGUF file cuts words by the rule {name!r}, which is not known here; "
            f"known are {', '.join(sorted(WORD_RULES))}",
        )
    if rule.raw:
        unknown = special_tokens(gguf).get("unk_token")
        raw = _bpe(gguf, tokens, vocab, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        return _raw(raw), Affixes(bos=rule.add_bos)
    tokenizer = Tokenizer(_bpe(gguf, tokens, vocab, ignore_merges=rule.whole_words))
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitter(rule)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, Affixes(bos=rule.add_bos)


def _bpe(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], **options: Any
) -> models.BPE:
    """The library's model of the merges, whose parts and results are in the vocabulary: it would
    panic over one that is not."""
    merges = _texts.merges(_array(gguf, "merges"), vocab, tokens)
    if isinstance(merges, int):
        line = _array(gguf, "merges")[merges]
        raise model_file_error(
            f"{_PREFIX}merges holds {line!r}, whose parts or result are not in the vocabulary",
            param=_PREFIX + "merges",
        )
    return models.BPE(vocab, merges, **options)


def _raw(model: models.BPE) -> Tokenizer:
    """Merges over the characters of the whole text, as Gemma's tokenizer.json has them."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def splitter(rule: WordRule) -> pre_tokenizers.PreTokenizer:
    """What cuts text into words by a rule, and writes bytes in the vocabulary's alphabet."""
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in rule.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, byte_level])


def merges_from_scores(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Merges of a SentencePiece BPE vocabulary, which stores only pieces and their scores.

    SentencePiece joins the neighbours whose union has the best score, leftmost first; as ranked
    pairs: every way to split a piece into two pieces, by the piece's score. Among the ways to split
    one piece the longer left part comes first: joining leftmost first, it is the left one that has
    grown.
    """
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, index in vocab.items():
        score = scores[index]
        if len(piece) > MAX_PIECE_CHARS:  # all its ways to be split take the square of its length
            raise model_file_error(
                f"{_PREFIX}tokens holds a piece of {len(piece)} characters; SentencePiece makes "
                f"none beyond {MAX_PIECE_CHARS}",
                param=_PREFIX + "tokens",
            )
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                ranked.append((-score, index, -cut, left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _sentencepiece(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], notes: list[str]
) -> tuple[Tokenizer, Affixes]:
    scores = [float(score) for score in _array(gguf, "scores", len(tokens))]
    if not scores:
        raise model_file_error(
            f"the GGUF file has no {_PREFIX}scores, which its vocabulary needs",
            param=_PREFIX + "scores",
        )
    types = _array(gguf, "token_type", len(tokens)) or [1] * len(tokens)
    # Only ordinary pieces are joined: control, byte and unused tokens never come out of text.
    ordinary = {token: i for token, i in vocab.items() if types[i] in (1, _USER_DEFINED)}
    unknown = special_tokens(gguf).get("unk_token")
    tokenizer = Tokenizer(
        models.BPE(
            vocab,
            merges_from_scores(ordinary, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[normalizers.Normalizer] = [*_normalization(gguf), normalizers.Replace(" ", "▁")]
    undo: list[decoders.Decoder] = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if gguf.get(_PREFIX + "add_space_prefix", True):
        steps.insert(len(steps) - 1, normalizers.Prepend("▁"))
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer, Affixes(bos=True)


def _normalization(gguf: Mapping[str, Any]) -> list[normalizers.Normalizer]:
    """SentencePiece's own: a table of replacements, and blanks that say nothing left out."""
    steps: list[normalizers.Normalizer] = []
    charsmap = gguf.get(_PREFIX + "precompiled_charsmap")
    if charsmap:
        try:
            table = charsmap
            if not isinstance(charsmap, bytes):
                table = bytes(v % 256 for v in _array(gguf, "precompiled_charsmap"))
            steps.append(normalizers.Precompiled(table))
        except TidemillError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise model_file_error(
                f"{_PREFIX}precompiled_charsmap cannot be read: {error}",
                param=_PREFIX + "precompiled_charsmap",
            ) from error
    if gguf.get(_PREFIX + "remove_extra_whitespaces", False):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    return steps


def _unigram(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], notes: list[str]
) -> tuple[Tokenizer, Affixes]:
    scores = [float(score) for score in _array(gguf, "scores", len(tokens))]
    unknown = special_tokens(gguf).get("unk_token")
    if not scores or unknown is None:
        raise model_file_error(
            f"a unigram vocabulary needs {_PREFIX}scores and {_PREFIX}unknown_token_id",
            param=_PREFIX + "scores",
        )
    types = _array(gguf, "token_type", len(tokens)) or [1] * len(tokens)
    tokenizer = Tokenizer(
        models.Unigram(
            list(zip(tokens, scores, strict=True)), unk_id=vocab[unknown], byte_fallback=6 in types
        )
    )
    prefixed = bool(gguf.get(_PREFIX + "add_space_prefix", True))
    scheme = "always" if prefixed else "never"
    tokenizer.normalizer = normalizers.Sequence(_normalization(gguf))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer, Affixes(bos=False, eos=True)


def _wordpiece(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], notes: list[str]
) -> tuple[Tokenizer, Affixes]:
    """Converters write a word's first piece with a leading ▁ and later ones as they are, where
    WordPiece has the piece as it is and ## before later ones."""
    types = _array(gguf, "token_type", len(tokens)) or [1] * len(tokens)
    pieces: dict[str, int] = {}
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in _SPECIAL_TYPES or kind == _USER_DEFINED or not token:
            pieces[token] = index
        else:
            pieces[token[1:] if token.startswith("▁") else "##" + token] = index
    unknown = special_tokens(gguf).get("unk_token", "[UNK]")
    if unknown not in pieces:
        raise model_file_error(
            f"the vocabulary lacks its own token for unknown words ({unknown[:40]!r})",
            param=_PREFIX + "unknown_token_id",
        )
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token=unknown))
    lower = bool(gguf.get(_PREFIX + "normalizer.lowercase", True))
    accents = bool(gguf.get(_PREFIX + "normalizer.strip_accents", lower))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer, Affixes(bos=True, sep=True)


def _add_affixes(tokenizer: Tokenizer, gguf: Mapping[str, Any], default: Affixes) -> None:
    """Put the start and end tokens around plain text where the metadata (or the kind) says so.

    A separator stands at the end where it is asked for; an end token then does not.
    """
    special = special_tokens(gguf)
    bos, eos, sep = (special.get(role) for role in ("bos_token", "eos_token", "sep_token"))
    bos = special.get("cls_token", bos) if default.sep else bos
    first = bos if gguf.get(_PREFIX + "add_bos_token", default.bos) else None
    last = eos if gguf.get(_PREFIX + "add_eos_token", default.eos) else None
    if gguf.get(_PREFIX + "add_sep_token", default.sep) and sep is not None:
        last = sep
    around = {token: tokenizer.token_to_id(token) for token in (first, last) if token is not None}
    if None in around.values():
        raise model_file_error(
            f"the vocabulary has no token for its own start or end ({', '.join(around)!r})",
            param=_PREFIX + "tokens",
        )
    if not around:
        return
    single = [*([first] if first else []), "$A", *([last] if last else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=list(around.items())
    )
