"""How byte-level vocabularies cut text into words, by the name a GGUF file gives the rule.

The expressions are those of the tokenizers the rules are named after; which name means which is
what llama.cpp's converter writes into ``tokenizer.ggml.pre``.
"""

from __future__ import annotations

from dataclasses import dataclass


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


_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _modern(digits: str) -> str:
    """Words with one leading sign, runs of so many digits, signs, line ends, blanks."""
    return "|".join([_CONTRACTIONS, _WORD, digits, _SIGNS, _BLANKS])


def _cased(digits: str, suffix: str) -> str:
    """Words cut where a capital follows a small letter."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = [f"{lead}{_UPPER}*{_LOWER}+{suffix}", f"{lead}{_UPPER}+{_LOWER}*{suffix}"]
    return "|".join([*words, digits, r" ?[^\s\p{L}\p{N}]+[\r\n/]*", _BLANKS])


_ASCII_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK3_WORDS = (
    _ASCII_SIGNS + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _BLANKS
)  # fmt: skip
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
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

# OpenAI's later rule without Chinese characters, which are words of their own.
_KIMI_WORDS = "|".join([
    r"[\p{Han}]+",
    *(
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^\p{{Han}}]]{upper}"
        rf"[{_LOWER}&&[^\p{{Han}}]]{lower}{_CONTRACTIONS}?"
        for upper, lower in (("*", "+"), ("+", "*"))
    ),
    r"\p{N}{1,3}", _SIGNS, _BLANKS,
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
        "gpt-2 gpt2 phi-2 olmo mpt jais trillion granite-docling gigachat jina-es jina-de "
        "jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe a.x-4.0 mellum modern-bert "
        "exaone4",
    ),
    (
        _LLAMA3,
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (_THREE_DIGITS, "smaug-bpe dbrx chatglm-bpe"),
    (_GLM4, "glm4 glm5"),
    (_QWEN2, "qwen2 megrez kormo f2llmv2"),
    (WordRule((_QWEN35_WORDS,), nfc=True), "qwen35"),
    (WordRule((_modern(r"\p{N}"),), add_bos=True, nfc=False), "deepseek-r1-qwen"),
    (_ONE_DIGIT, "stablelm2 hunyuan solar-open grok-2"),
    (WordRule((_cased(r"\p{N}", ""),), whole_words=True, add_bos=True), "tekken"),
    (_GPT4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (
        _DIGITS,
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    ),
    (WordRule(_DEEPSEEK_CODER), "deepseek-coder"),
    (_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (WordRule(_FALCON), "falcon"),
    (WordRule((_KIMI_WORDS,), whole_words=True), "kimi-k2"),
    # As their ranks files are read: whatever is a token is taken whole.
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
)
WORD_RULES: dict[str, WordRule] = {name: rule for rule, names in _BY_RULE for name in names.split()}
