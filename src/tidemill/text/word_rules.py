"""Pre-tokenization rules of byte-level vocabularies, by their names in GGUF files.

The expressions are those of the original tokenizers; the names are those that llama.cpp's converter
writes into ``tokenizer.ggml.pre``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WordRule:
    """How a byte-level vocabulary splits text into words before merging.

    Attributes:
        patterns: regular expressions applied one after another; matches and gaps are words.
        whole_words: a word that is a token is not merged (`ignore_merges`).
        nfc: text is normalized to NFC first.
        add_bos: plain text gets the start token unless the metadata overrides it.
        raw: text is not split, and tokens are plain text: a space is ``▁``, and characters missing
            from the vocabulary become byte tokens ``<0x0A>`` (Gemma 4). The other rules write every
            byte as a character of GPT-2's alphabet.
    """

    patterns: tuple[str, ...] = ()
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False
    raw: bool = False


def _range_class(ranges: str) -> str:
    """The inside of a character class, from hexadecimal code points and ranges of them."""
    return re.sub("[0-9A-F]+", lambda code: rf"\x{{{code[0]}}}", ranges).replace(" ", "")


_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _modern(digits: str) -> str:
    """Words with one leading sign, runs of digits, signs, line ends, white space."""
    return "|".join([_CONTRACTIONS, _WORD, digits, _SIGNS, _BLANKS])


def _cased(digits: str, suffix: str) -> str:
    """As `_modern`, but words are split where an upper-case letter follows a lower-case one."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = [f"{lead}{_UPPER}*{_LOWER}+{suffix}", f"{lead}{_UPPER}+{_LOWER}*{suffix}"]
    return "|".join([*words, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _BLANKS])


_ASCII_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3_WORDS = (
    _ASCII_SIGNS + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _BLANKS
)  # fmt: skip
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
# Letters with case, as listed in the original tokenizer.
_DEEPSEEK_LETTERS = _range_class(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 "
    "388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA "
    "1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 "
    "1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB "
    "1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 "
    "A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A "
    "FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_SIGNS = _range_class("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_DEEPSEEK_LLM = (
    r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", rf"\s?[{_DEEPSEEK_SIGNS}]+", r"\s+$",
    _DEEPSEEK_CODER[3], r"\p{N}+",
)  # fmt: skip
_BLOOM_WORDS = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_WORDS, r"[0-9][0-9][0-9]")
_QWEN35_WORDS = "|".join([
    _CONTRACTIONS, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _BLANKS,
])  # fmt: skip
_BAILING_WORDS = (
    rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+"
)  # fmt: skip
_SEED_WORDS = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"

# OpenAI's o200k rule, except that runs of Chinese characters are separate words.
_KIMI_WORDS = "|".join([
    r"[\p{Han}]+",
    *(
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^\p{{Han}}]]{upper}"
        rf"[{_LOWER}&&[^\p{{Han}}]]{lower}{_CONTRACTIONS}?"
        for upper, lower in (("*", "+"), ("+", "*"))
    ),
    r"\p{N}{1,3}", _SIGNS, _BLANKS,
])  # fmt: skip

# Splits a run of digits into groups of three from the right, in time linear in the run.
_AFMOE = (
    r"\p{N}+", r"\A\p{N}{1,2}(?=(?:\p{N}{3})+\z)|\p{N}{3}",
    "[" + _range_class(
        "4E00-9FFF 3400-4DBF 8C48-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF "
        "1780-17FF 1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF"
    ) + "]+",
    _DEEPSEEK3_WORDS,
)  # fmt: skip
# Equivalent to \d{1,3}(?=(?:\d{3})*\b), which takes time quadratic in a run's length: first runs
# that end a word, then groups of three within those.
_THREES_OF_WORDS = (
    r"(?<!\d)\d++\b",
    r"\A(?!\d++\z)(?m:.)+|\A\d{1,2}(?=(?:\d{3})+\z)|\d{3}",
)
# Equivalent to splits at (?=(\d{3})+(?!\d)), in linear time: a piece is three digits, or the first
# one or two of a run, with all text up to the next split.
_HEAD = r"\d{1,2}(?=(?:\d{3})*(?!\d))"
_SUPERBPE = (r"\p{N}+", rf"(?:\A{_HEAD}|\d{{3}}|\A(?=\D))(?:\D+(?:{_HEAD})?)*")
_CHAMELEON = (
    r"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]", _GPT2_WORDS,
)  # fmt: skip
_YOUTU = (
    "|".join(
        f"[{_range_class(script)}]+"
        for script in (
            "AC00-D7A3 3131-318E",
            "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
            "3105-312F",
            "4E00-9FA5 3040-309F 30A0-30FF",
        )
    ),
    _cased(r"\p{N}", _CONTRACTIONS + "?"),
)
_EXAONE_WORDS = "|".join([
    _CONTRACTIONS, r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+", r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]?", r"\s*[\r\n]|\s+(?!\S)|\s+",
])  # fmt: skip

_GPT2 = WordRule((_GPT2_WORDS,))
_LLAMA3 = WordRule((_modern(r"\p{N}{1,3}"),), whole_words=True, add_bos=True)
_THREE_DIGITS = WordRule((_modern(r"\p{N}{1,3}"),))
_GLM4 = WordRule((_modern(r"\p{N}{1,3}"),), whole_words=True)
_QWEN2 = WordRule((_modern(r"\p{N}"),), nfc=True)
_ONE_DIGIT = WordRule((_modern(r"\p{N}"),))
_DIGITS = WordRule((r"\p{N}", _GPT2_WORDS))
_DEEPSEEK3 = WordRule((r"\p{N}{1,3}", r"[一-龥\x{3040}-\x{30FF}]+", _DEEPSEEK3_WORDS))
_GPT4O = WordRule((_cased(r"\p{N}{1,3}", _CONTRACTIONS + "?"),))
_BLOOM = WordRule((_BLOOM_WORDS,))
_BAILING = WordRule((_BAILING_WORDS,))

_BY_RULE: tuple[tuple[WordRule, str], ...] = (
    (
        _GPT2,
        "gpt-2 gpt2 phi-2 jais trillion granite-docling gigachat jina-es jina-de jina-v2-es "
        "jina-v2-de jina-v1-en jina-v2-code roberta-bpe a.x-4.0 mellum exaone4",
    ),
    # GPT-NeoX's tokenizer and its derivatives.
    (WordRule((_GPT2_WORDS,), nfc=True), "olmo mpt modern-bert"),
    (
        _LLAMA3,
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (_THREE_DIGITS, "smaug-bpe dbrx chatglm-bpe"),
    (_GLM4, "glm4 glm5"),
    (_QWEN2, "qwen2 megrez kormo f2llmv2"),
    # Verified with held-out cases of a published vocabulary: GGUF files with this name do not
    # normalize, although transformers' class for the family does.
    (WordRule((_QWEN35_WORDS,)), "qwen35"),
    (WordRule((_modern(r"\p{N}"),), add_bos=True, nfc=False), "deepseek-r1-qwen"),
    (_ONE_DIGIT, "stablelm2 hunyuan solar-open grok-2"),
    (WordRule((_cased(r"\p{N}", ""),), whole_words=True, add_bos=True), "tekken"),
    (_GPT4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (
        _DIGITS,
        "smollm starcoder refact codeshell exaone minerva-7b mellum2",
    ),
    (WordRule(_DIGITS.patterns, nfc=True), "command-r"),
    (WordRule(_DEEPSEEK_CODER), "deepseek-coder"),
    (_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (WordRule(_FALCON), "falcon"),
    (WordRule((_KIMI_WORDS,), whole_words=True), "kimi-k2"),
    # Vocabularies from tiktoken rank files: a word that is a token is not merged.
    (WordRule(_QWEN2.patterns, whole_words=True, nfc=True), "qwen"),
    (WordRule(_GPT4O.patterns, whole_words=True), "o200k"),
    (_BLOOM, "bloom gpt3-finnish poro-chat"),
    (WordRule((_BLOOM_WORDS, r"\p{N}")), "viking"),
    (_BAILING, "bailingmoe bailingmoe2 llada-moe"),
    (WordRule((_SEED_WORDS,)), "seed-coder"),
    (
        WordRule((r"\p{N}{1,3}", _modern(r"\p{N}+")), whole_words=True),
        "minicpm5",
    ),
    (WordRule(_DEEPSEEK_LLM), "deepseek-llm"),
    (WordRule(_AFMOE), "afmoe"),
    (WordRule((*_THREES_OF_WORDS, *_GPT4O.patterns), nfc=True), "tiny_aya cohere2moe"),
    (WordRule(_SUPERBPE), "superbpe"),
    (WordRule(_CHAMELEON, add_bos=True), "chameleon"),
    (WordRule(_YOUTU, whole_words=True), "youtu"),
    (WordRule((_EXAONE_WORDS,)), "exaone-moe"),
    (WordRule(raw=True, add_bos=True), "gemma4"),
    (WordRule(raw=True), "granite-embed-multi-311m sarvam-moe"),
)
WORD_RULES: dict[str, WordRule] = {name: rule for rule, names in _BY_RULE for name in names.split()}
