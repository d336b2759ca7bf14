"""Compiles a grammar and walks through it, with a vocabulary of single bytes.

Unbounded recursion, memory exhaustion and endless loops in llguidance depend on the grammar and
hardly on the vocabulary. A byte vocabulary takes 1 MiB, a model's up to 127 MiB. Acceptance must
not depend on the vocabulary either, so ids, special tokens and end tokens are the model's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import thread_time

import llguidance
from llguidance import LLMatcher

from tidemill.contract.program import Grammar
from tidemill.grammar.forcing import MAX_FORCED, without_forcing
from tidemill.grammar.languages import limits, llguidance_source, rejection
from tidemill.grammar.messages import Tried, VocabularyShape

WALKS, WALK_BYTES = 2, 12
"""Number of walks through a grammar, and bytes of each."""

WALK_SECONDS = 0.005
"""CPU time after which a walk stops, because a grammar may be slow to advance."""


class _Bytes:
    """A tokenizer of single bytes, with the interface of llguidance's wrapper; the byte tokens' ids
    follow the model's."""

    bos_token_id = None

    def __init__(self, shape: VocabularyShape) -> None:
        self.first = shape.size
        self.tokens = [b""] * shape.size + [bytes([i]) for i in range(256)]
        for token_id, text in shape.special:
            self.tokens[token_id] = text
        self.special_token_ids = [token_id for token_id, _ in shape.special]
        self.eos_token_id = shape.ends[0] if shape.ends else 0

    def __call__(self, text: bytes) -> list[int]:
        return [self.first + byte for byte in text]


class Trial:
    """Tries grammars in this process.

    Args:
        shape: of the model's vocabulary.
    """

    def __init__(self, shape: VocabularyShape) -> None:
        tokenizer = _Bytes(shape)
        self._first = tokenizer.first
        self._ll = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(tokenizer),
            n_vocab=len(tokenizer.tokens),
            eos_token=[*shape.ends] or None,
        )
        tokenizer.tokens = []  # llguidance has copied them

    def attempt(self, grammar: Grammar) -> Tried:
        """Compile a grammar, and advance it by some bytes.

        Raises:
            TidemillError: kind BAD_REQUEST naming the field that cannot be enforced.
        """
        source = llguidance_source(grammar)
        before = heap_in_use()
        matcher = self.compiled(source)
        if matcher.is_error():
            raise rejection(grammar, matcher.get_error(), lambda s: self.compiled(s).get_error())
        if not self._follow(matcher):
            source = without_forcing(source)
            before = heap_in_use()
            matcher = self.compiled(source)
            self._follow(matcher)
        return Tried(source, max(0, heap_in_use() - before))

    def _follow(self, matcher: LLMatcher) -> bool:
        """Walk through a grammar; False if more than `MAX_FORCED` bytes are forced somewhere."""
        return all(self._walk(matcher.deep_copy(), highest=bool(i % 2)) for i in range(WALKS))

    def compiled(self, source: str) -> LLMatcher:
        """A matcher of a source as `llguidance_source` makes it; it may be in an error state."""
        return LLMatcher(self._ll, source, log_level=0, limits=limits())

    def _walk(self, matcher: LLMatcher, highest: bool) -> bool:
        """Advance by the lowest (highest) allowed byte and by forced tokens. Errors are ignored:
        the request's output may not reach them.

        Returns:
            False where more than `MAX_FORCED` bytes were forced.
        """
        skipped, first = divmod(self._first, 8)
        end = thread_time() + WALK_SECONDS
        for _ in range(WALK_BYTES):
            if forced := matcher.compute_ff_tokens():
                if len(forced) > MAX_FORCED:
                    return False
                matcher.consume_tokens(forced[:WALK_BYTES])
            mask = int.from_bytes(matcher.compute_bitmask()[skipped:], "little") >> first
            if not mask or matcher.is_error() or matcher.is_stopped() or thread_time() > end:
                break
            byte = (mask if highest else mask & -mask).bit_length() - 1
            matcher.consume_token(self._first + byte)
        return True


class _MallocInfo(ctypes.Structure):
    """glibc's mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _measure() -> Callable[[], int]:
    read = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if read is None:
        return lambda: 0
    read.restype = _MallocInfo

    def in_use() -> int:
        info = read()
        return int(info.uordblks + info.hblkhd)

    return in_use


heap_in_use = _measure()
"""Bytes that this process has allocated; 0 if the C library cannot report it. Takes 0.2 us."""
