"""A model's vocabulary in the form that llguidance requires."""

from __future__ import annotations

from collections.abc import Iterable

import llguidance

from tidemill.base.tokenizer_data import TokenizerData
from tidemill.grammar.messages import VocabularyShape
from tidemill.text.tokenizer import Tokenizer

# Forced tokens are disabled for a tokenizer that prepends a space to every text, which encodes the
# middle of a text differently, and for one that cannot encode every byte.
_PROBES = ('{"name": "x", "list": [1, 2]}', "a\n  b", "né 漢字")


class Vocabulary:
    """Token bytes, special tokens and end tokens of one model.

    Attributes:
        size: token ids of the model's output layer; ids beyond the tokenizer's are never allowed.
        mask_bytes: bytes of a token mask.
        ends: end tokens, all below `size`.
        canonical: a part of a text encodes to the same tokens as within the text, so forced tokens
            can be computed.
        ll: llguidance's tokenizer.
        shape: the properties that decide whether a grammar is accepted.
    """

    def __init__(self, data: TokenizerData, size: int, ends: Iterable[int]) -> None:
        tokenizer = Tokenizer(data).only_literally()
        self._tokenizer = tokenizer
        self.size = size
        self.mask_bytes = -(-size // 8)
        self.ends = tuple(sorted(i for i in set(ends) if 0 <= i < size))
        # Read by llguidance's wrapper.
        known = min(size, tokenizer.vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in range(known)] + [b""] * (size - known)
        self._special = frozenset(tokenizer.special_ids)
        self.special_token_ids = sorted(i for i in self._special if i < size)
        self.bos_token_id = None
        self.eos_token_id = self.ends[0] if self.ends else 0
        special = ((i, self.tokens[i]) for i in self.special_token_ids)
        self.shape = VocabularyShape(size, tuple(special), self.ends)
        self.canonical = tokenizer.strip == 0 and all(map(self._spells, _PROBES))
        wrapper = llguidance.TokenizerWrapper(self)
        self.ll = llguidance.LLTokenizer(wrapper, n_vocab=size, eos_token=[*self.ends] or None)
        # llguidance has copied them; they take ten megabytes and more.
        self.tokens = []
        tokenizer.forget_pieces()

    def __call__(self, text: bytes) -> list[int]:
        """Token ids of a text; special tokens' texts are ordinary characters."""
        plain = text.decode("utf-8", errors="replace")
        return self._tokenizer.encode(plain, add_special=False, parse_special=False)

    def piece(self, token_id: int, *, special: bool) -> bytes:
        """The bytes that a token adds to a text; of a special token, only if `special`."""
        tokenizer = self._tokenizer
        if token_id >= tokenizer.vocab_size or not (special or token_id not in self._special):
            return b""
        return tokenizer.token_bytes(token_id)

    def _spells(self, text: str) -> bool:
        ids = self(text.encode())
        return b"".join(self._tokenizer.token_bytes(i) for i in ids) == text.encode()
