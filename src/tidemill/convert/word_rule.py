"""Identification of a tokenizer's pre-tokenization rule by its GGUF name."""

from __future__ import annotations

import random

import tokenizers

from tidemill.base.errors import unsupported
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.text.gguf_library import splitter
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.word_rules import WORD_RULES

_TEXTS = 60
_APART = "cafe\u0301 A\u030a"  # decomposed letters that NFC composes
_POOL = (
    "aZ \u00e9\u00df\u0416\u0436\u65e5\u672c\u8a9e\uac00 \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e44\u0e17\u0e22 0123456789\u0663 '\"`~!@#$%^&*()-_=+[]{}\\|;:,<.>/? \u2026\u3002\u060c "
    "\n\r\t\u00a0\u3000 'S 'll 'Re \u00bd \U0001f999\u01c5"
)


def texts() -> list[str]:
    """Texts that every rule splits differently."""
    chosen = random.Random(0)
    drawn = ["".join(chosen.choice(_POOL) for _ in range(60)) for _ in range(_TEXTS)]
    return [
        *drawn,
        _APART,
        "Hello World's DON'T we'Ll 1234567 3.14159,22 AbcDEFghi\n\n  x == y;\t\n",
    ]


def find_rule(data: TokenizerData) -> str | None:
    """The rule that splits text as this tokenizer.json does, with the same NFC normalization; None
    if no rule matches."""
    if data.tokenizer_json is None:
        return None
    library = tokenizers.Tokenizer.from_buffer(bytes(data.tokenizer_json))
    if library.pre_tokenizer is None:
        return None
    whole = bool(getattr(library.model, "ignore_merges", False))
    normalizer = library.normalizer
    nfc = normalizer is not None and normalizer.normalize_str(_APART) != _APART
    wanted = [_words(library.pre_tokenizer, text) for text in texts()]
    for name, rule in WORD_RULES.items():
        if rule.raw or rule.whole_words != whole or rule.nfc != nfc:
            continue
        cutter = splitter(rule)
        if all(_words(cutter, t) == w for t, w in zip(texts(), wanted, strict=True)):
            return name
    return None


def _words(cutter: tokenizers.pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [word for word, _ in cutter.pre_tokenize_str(text)]


def check_same(before: TokenizerData, after: TokenizerData, refusal: str) -> None:
    """Raise UNSUPPORTED with the message `refusal` unless both give the same token ids.

    A vocabulary that cannot be written exactly is not written at all.
    """
    old, new = Tokenizer(before), Tokenizer(after)
    for text in texts():
        if old.encode(text) != new.encode(text):
            raise unsupported("out", refusal)
