"""Builds a tokenizer of the `tokenizers` library from the vocabulary in a GGUF file's metadata.

Five kinds are supported: ``gpt2`` (byte-level BPE with merges; ``tokenizer.ggml.pre`` names the
pre-tokenization rule), ``gemma4`` (BPE with merges over characters, with byte fallback),
``llama`` (SentencePiece BPE: pieces with scores and byte fallback), ``t5`` (SentencePiece unigram)
and ``bert`` (WordPiece).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

from tidemill.base import _texts
from tidemill.base.errors import TidemillError, model_file_error, unsupported
from tidemill.text.gguf_vocab import (
    PREFIX,
    SPECIAL_TYPES,
    USER_DEFINED,
    Affixes,
    affix_tokens,
    array,
    marked,
    special_tokens,
    token_types,
    unknown_merge,
    word_rule,
)
from tidemill.text.word_rules import WordRule

MAX_PIECE_CHARS = 512


def tokenizer_from_gguf(gguf: Mapping[str, Any]) -> tuple[Tokenizer, list[str]]:
    """Build the tokenizer; return it with notes for the log (possibly empty).

    Args:
        gguf: the file's ``tokenizer.*`` metadata, arrays as lists.

    Raises:
        TidemillError: kind MODEL_FILE if the metadata is incomplete or contradicts itself;
            UNSUPPORTED for an unknown vocabulary kind or word rule.
    """
    kind = gguf.get(PREFIX + "model")
    builders = {
        "gpt2": _merged, "gemma4": _merged, "llama": _sentencepiece, "t5": _unigram,
        "bert": _wordpiece,
    }  # fmt: skip
    if not isinstance(kind, str) or kind not in builders:
        raise unsupported(
            PREFIX + "model",
            f"the GGUF file's vocabulary is of kind {kind!r}, which is not supported; supported "
            f"are {', '.join(builders)}",
        )
    tokens = array(gguf, "tokens")
    if not tokens:
        raise model_file_error("the GGUF file's vocabulary is empty", param=PREFIX + "tokens")
    types = token_types(gguf, len(tokens))
    notes: list[str] = []
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(vocab) < len(tokens):
        notes.append(
            f"{len(tokens) - len(vocab)} tokens of the GGUF vocabulary repeat another one's text; "
            "the last of each is used"
        )
    tokenizer, affixes = builders[kind](gguf, tokens, vocab, notes)
    added = [
        AddedToken(tokens[i], special=special, normalized=False)
        for i, special in marked(types)
        if tokens[i]
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    _add_affixes(tokenizer, gguf, affixes)
    return tokenizer, notes


def _merged(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], notes: list[str]
) -> tuple[Tokenizer, Affixes]:
    """BPE with merges, pre-tokenized by a word rule."""
    rule, rule_notes = word_rule(gguf)
    notes += rule_notes
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
    """The library's BPE model. Merges are checked first: the library panics if a merge's parts or
    result are not in the vocabulary."""
    merges = _texts.merges(array(gguf, "merges"), vocab, tokens)
    if isinstance(merges, int):
        raise unknown_merge(array(gguf, "merges")[merges])
    return models.BPE(vocab, merges, **options)


def _raw(model: models.BPE) -> Tokenizer:
    """Merges over the characters of the whole text, as in Gemma's tokenizer.json."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def splitter(rule: WordRule) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a word rule, which maps bytes to the vocabulary's alphabet."""
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in rule.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, byte_level])


def merges_from_scores(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Merges of a SentencePiece BPE vocabulary, which stores only pieces and their scores.

    SentencePiece joins the neighbours whose union has the best score, leftmost first. Equivalent
    merges are all splits of a piece into two pieces, ranked by the piece's score. Among the splits
    of one piece the longer left part has priority, because leftmost joining grows the left part.
    """
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, index in vocab.items():
        score = scores[index]
        if len(piece) > MAX_PIECE_CHARS:  # enumerating splits takes quadratic time
            raise model_file_error(
                f"{PREFIX}tokens contains a piece of {len(piece)} characters; SentencePiece's "
                f"limit is {MAX_PIECE_CHARS}",
                param=PREFIX + "tokens",
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
    scores = [float(score) for score in array(gguf, "scores", len(tokens))]
    if not scores:
        raise model_file_error(
            f"the GGUF file has no {PREFIX}scores, which its vocabulary needs",
            param=PREFIX + "scores",
        )
    types = token_types(gguf, len(tokens))
    # Only ordinary pieces are merged; control, byte and unused tokens never result from text.
    ordinary = {token: i for token, i in vocab.items() if types[i] in (1, USER_DEFINED)}
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
    if gguf.get(PREFIX + "add_space_prefix", True):
        steps.insert(len(steps) - 1, normalizers.Prepend("▁"))
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer, Affixes(bos=True)


def _normalization(gguf: Mapping[str, Any]) -> list[normalizers.Normalizer]:
    """SentencePiece's normalization: its charsmap, and removal of extra white space."""
    steps: list[normalizers.Normalizer] = []
    charsmap = gguf.get(PREFIX + "precompiled_charsmap")
    if charsmap:
        try:
            table = charsmap
            if not isinstance(charsmap, bytes):
                table = bytes(v % 256 for v in array(gguf, "precompiled_charsmap"))
            steps.append(normalizers.Precompiled(table))
        except TidemillError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise model_file_error(
                f"{PREFIX}precompiled_charsmap cannot be read: {error}",
                param=PREFIX + "precompiled_charsmap",
            ) from error
    if gguf.get(PREFIX + "remove_extra_whitespaces", False):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    return steps


def _unigram(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], notes: list[str]
) -> tuple[Tokenizer, Affixes]:
    scores = [float(score) for score in array(gguf, "scores", len(tokens))]
    unknown = special_tokens(gguf).get("unk_token")
    if not scores or unknown is None:
        raise model_file_error(
            f"a unigram vocabulary needs {PREFIX}scores and {PREFIX}unknown_token_id",
            param=PREFIX + "scores",
        )
    types = token_types(gguf, len(tokens))
    tokenizer = Tokenizer(
        models.Unigram(
            list(zip(tokens, scores, strict=True)), unk_id=vocab[unknown], byte_fallback=6 in types
        )
    )
    prefixed = bool(gguf.get(PREFIX + "add_space_prefix", True))
    scheme = "always" if prefixed else "never"
    tokenizer.normalizer = normalizers.Sequence(_normalization(gguf))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer, Affixes(bos=False, eos=True)


def _wordpiece(
    gguf: Mapping[str, Any], tokens: list[str], vocab: dict[str, int], notes: list[str]
) -> tuple[Tokenizer, Affixes]:
    """Converters mark a word's first piece with a leading ▁ and leave later pieces unmarked;
    WordPiece leaves the first piece unmarked and prefixes later ones with ##."""
    types = token_types(gguf, len(tokens))
    pieces: dict[str, int] = {}
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in SPECIAL_TYPES or kind == USER_DEFINED or not token:
            pieces[token] = index
        else:
            pieces[token[1:] if token.startswith("▁") else "##" + token] = index
    unknown = special_tokens(gguf).get("unk_token", "[UNK]")
    if unknown not in pieces:
        raise model_file_error(
            f"the vocabulary lacks its token for unknown words ({unknown[:40]!r})",
            param=PREFIX + "unknown_token_id",
        )
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token=unknown))
    lower = bool(gguf.get(PREFIX + "normalizer.lowercase", True))
    accents = bool(gguf.get(PREFIX + "normalizer.strip_accents", lower))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer, Affixes(bos=True, sep=True)


def _add_affixes(tokenizer: Tokenizer, gguf: Mapping[str, Any], default: Affixes) -> None:
    """Add the start and end tokens to plain text where the metadata (or the kind) requires it."""
    first, last = affix_tokens(gguf, default)
    around = {token: tokenizer.token_to_id(token) for token in (first, last) if token is not None}
    if None in around.values():
        raise model_file_error(
            f"the vocabulary lacks its start or end token ({', '.join(around)!r})",
            param=PREFIX + "tokens",
        )
    if not around:
        return
    single = [*([first] if first else []), "$A", *([last] if last else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=list(around.items())
    )
