"""The vocabulary in a GGUF file's metadata, as a tokenizer of the `tokenizers` library.

Two kinds are read: ``gpt2`` (byte-level BPE with merges; ``tokenizer.ggml.pre`` names the rule that
cuts text into words) and ``llama`` (SentencePiece BPE: pieces with scores and byte fallback).
Format: the GGUF specification, section "Tokenizer"; word rules: the tokenizers of the models they
are named after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

from tidemill.base.errors import model_file_error, unsupported

_PREFIX = "tokenizer.ggml."
# Values of tokenizer.ggml.token_type.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
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

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class WordRule:
    """How a byte-level vocabulary cuts text into words before merging.

    Attributes:
        patterns: regular expressions applied one after another; matches and gaps are words.
        whole_words: a word that is a token is taken as it is, whatever the merges say.
        nfc: text is brought to Unicode normalization form C first.
        add_bos: plain text gets the start token unless the metadata says otherwise.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False


_GPT2 = WordRule((_GPT2_WORDS,))
_LLAMA3 = WordRule((_LLAMA3_WORDS,), whole_words=True, add_bos=True)
_QWEN2 = WordRule((_QWEN2_WORDS,), nfc=True)
_DIGITS = WordRule((r"\p{N}", _GPT2_WORDS))

WORD_RULES: dict[str, WordRule] = {
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": WordRule((_LLAMA3_WORDS,)),
    "dbrx": WordRule((_LLAMA3_WORDS,)),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": WordRule((_QWEN2_WORDS,), add_bos=True),
    "tekken": WordRule((_TEKKEN_WORDS,), whole_words=True, add_bos=True),
    "gpt-4o": WordRule((_GPT4O_WORDS,)),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
}
_DEFAULT_NOTE = (
    "the GGUF file does not name its word rule (tokenizer.ggml.pre is missing or 'default'): "
    "GPT-2's is used, and token ids may differ from the original model's; "
    "convert the file again with a current converter"
)


def special_tokens(gguf: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role (``bos_token``), from the ids in the metadata.

    Raises:
        TidemillError: kind MODEL_FILE if an id is not in the vocabulary.
    """
    tokens = _array(gguf, "tokens")
    found: dict[str, str] = {}
    for key, role in _ROLES.items():
        value = gguf.get(_PREFIX + key)
        if value is None:
            continue
        if not 0 <= int(value) < len(tokens):
            raise model_file_error(
                f"{_PREFIX}{key} is {int(value)}, but the vocabulary has {len(tokens)} tokens",
                param=_PREFIX + key,
            )
        found[role] = tokens[int(value)]
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
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in builders:
        raise unsupported(
            _PREFIX + "model",
            f"the GGUF file's vocabulary is of kind {kind!r}; supported are {', '.join(builders)}",
        )
    tokens = _array(gguf, "tokens")
    if not tokens:
        raise model_file_error("the GGUF file's vocabulary is empty", param=_PREFIX + "tokens")
    types = _array(gguf, "token_type", len(tokens)) or [1] * len(tokens)
    notes: list[str] = []
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        notes.append(
            f"{len(tokens) - len(vocab)} tokens of the GGUF vocabulary repeat another one's text; "
            "the last of each is used"
        )
    tokenizer, default_bos = builders[str(kind)](gguf, tokens, vocab, notes)
    added = [
        AddedToken(token, special=kind in _SPECIAL_TYPES, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if token and (kind in _SPECIAL_TYPES or kind == _USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    _add_affixes(tokenizer, gguf, default_bos)
    return tokenizer, notes


def _array(gguf: Mapping[str, Any], name: str, length: int | None = None) -> list[Any]:
    """An array of the metadata as a list; empty if it is absent and `length` is given."""
    value = gguf.get(_PREFIX + name)
    if value is None:
        if length is not None:
            return []
        raise model_file_error(
            f"the GGUF file has no {_PREFIX}{name}: it carries no vocabulary; "
            "use a file made with its tokenizer",
            param=_PREFIX + name,
        )
    values = list(value)
    if length is not None and len(values) != length:
        raise model_file_error(
            f"{_PREFIX}{name} has {len(values)} entries for {length} tokens", param=_PREFIX + name
        )
    return values


def _byte_level(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], notes: list[str]
) -> tuple[Tokenizer, bool]:
    name = str(gguf.get(_PREFIX + "pre", "default"))
    rule = WORD_RULES.get(name)
    if name == "default":
        rule = _GPT2
        notes.append(_DEFAULT_NOTE)
    if rule is None:
        raise unsupported(
            _PREFIX + "pre",
            f"the GGUF file cuts words by the rule {name!r}, which is not known here; "
            f"known are {', '.join(sorted(WORD_RULES))}",
        )
    merges: list[tuple[str, str]] = []
    for line in _array(gguf, "merges"):
        # The space between the halves is never the first character of a line.
        cut = line.find(" ", 1)
        left, right = line[:cut], line[cut + 1 :]
        if cut < 0 or left not in vocab or right not in vocab or left + right not in vocab:
            raise model_file_error(
                f"{_PREFIX}merges holds {line!r}, whose parts or result are not in the vocabulary",
                param=_PREFIX + "merges",
            )
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=rule.whole_words))
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in rule.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule.add_bos


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
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                ranked.append((-score, index, -cut, left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _sentencepiece(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], notes: list[str]
) -> tuple[Tokenizer, bool]:
    scores = [float(score) for score in _array(gguf, "scores", len(tokens))]
    if not scores:
        raise model_file_error(
            f"the GGUF file has no {_PREFIX}scores, which its vocabulary needs",
            param=_PREFIX + "scores",
        )
    types = _array(gguf, "token_type", len(tokens)) or [1] * len(tokens)
    # Only ordinary pieces are joined: control, byte and unused tokens never come out of text.
    ordinary = {token: i for token, i in vocab.items() if types[i] in (1, _USER_DEFINED)}
    unknown = gguf.get(_PREFIX + "unknown_token_id")
    tokenizer = Tokenizer(
        models.BPE(
            vocab,
            merges_from_scores(ordinary, scores),
            unk_token=None if unknown is None else tokens[int(unknown)],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if gguf.get(_PREFIX + "add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        tokenizer.decoder = decoders.Sequence([*undo, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces
        tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer, True


def _add_affixes(tokenizer: Tokenizer, gguf: Mapping[str, Any], default_bos: bool) -> None:
    """Put the start and end tokens around plain text where the metadata (or the kind) says so."""
    special = special_tokens(gguf)
    bos, eos = special.get("bos_token"), special.get("eos_token")
    add_bos = bool(gguf.get(_PREFIX + "add_bos_token", default_bos)) and bos is not None
    add_eos = bool(gguf.get(_PREFIX + "add_eos_token", False)) and eos is not None
    if not (add_bos or add_eos):
        return
    around = {token: tokenizer.token_to_id(token) for token in (bos, eos) if token is not None}
    single = [bos] * add_bos + ["$A"] + [eos] * add_eos
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=list(around.items())
    )
