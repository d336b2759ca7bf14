"""Grammars compiled to matchers, kept for the next request that asks for the same one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from llguidance import LLMatcher

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError
from tidemill.contract.program import Grammar
from tidemill.grammar.languages import limits, rejection
from tidemill.grammar.messages import Tried
from tidemill.grammar.trial import Trial
from tidemill.grammar.vocabulary import Vocabulary

MAX_KEPT = 256
MAX_KEPT_BYTES = 64 * 2**20
"""Compiled grammars kept, and the memory that they hold together."""

# A matcher and its copies share the states of their lexer, which become more as outputs differ: a
# usual request of 300 tokens adds some 100 KiB, one made for it 100 MiB. What masks are seen to add
# counts, and one that has been used often is compiled anew.
USE_BYTES = 128 * 2**10
MAX_USES = 128
MAX_BYTES = MAX_KEPT_BYTES // 2
"""Of one grammar that is kept."""

# Where the trial cannot measure what a grammar takes: at most so many times its source.
SOURCE_FACTOR = 110


@dataclass(slots=True)
class CompileStats:
    """Counters since the start: seconds of compiling, grammars compiled, found again, refused."""

    seconds: float = 0.0
    compiled: int = 0
    reused: int = 0
    refused: int = 0


@dataclass(slots=True)
class CompiledGrammar:
    """A compiled grammar, shared by all requests that use it.

    Attributes:
        matcher: at its beginning; requests have copies.
        bytes: of memory that it and its copies share, estimated.
        uses: requests it was given to.
        kept: for later requests.
    """

    matcher: LLMatcher
    bytes: int
    uses: int = 0
    kept: bool = True


class Compiler:
    """Compiles grammars for one vocabulary. Safe to call from several threads.

    Args:
        vocabulary: the model's.
        attempt: tries a grammar before it is compiled here, and says what is to be compiled; None:
            tried in this process, which a hostile one can end.
    """

    def __init__(
        self, vocabulary: Vocabulary, attempt: Callable[[Grammar], Tried] | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self.stats = CompileStats()
        self._attempt = attempt or Trial(vocabulary.shape).attempt
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._kept_bytes = 0

    def has(self, grammar: Grammar) -> bool:
        """The grammar is compiled already."""
        with self._lock:
            return _key(grammar) in self._kept

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A matcher at the beginning of a language, the caller's own; see `compiled`."""
        return self.compiled(grammar).matcher.deep_copy()

    def compiled(self, grammar: Grammar) -> CompiledGrammar:
        """A grammar compiled, now or before.

        Raises:
            TidemillError: kind BAD_REQUEST naming the field: the language cannot be honoured in
                full, or not within the bounds.
        """
        key = _key(grammar)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self.stats.reused += 1
                return self._use(key, kept)
        begun = monotonic()
        try:
            tried = self._attempt(grammar)
            made = self._compile(grammar, tried.source)
        except TidemillError:
            with self._lock:
                self.stats.refused += 1
            raise
        with self._lock:
            self.stats.seconds += monotonic() - begun
            self.stats.compiled += 1
            self._discard(key)
            # The trial's vocabulary shows within some percent what it takes over the model's.
            kept = CompiledGrammar(made, tried.heap_bytes or len(tried.source) * SOURCE_FACTOR)
            self._kept[key] = kept
            self._kept_bytes += kept.bytes
            return self._use(key, kept)

    def grown(self, compiled: CompiledGrammar, size: int) -> None:
        """A grammar was seen to take more memory; it is not kept beyond the bounds."""
        with self._lock:
            compiled.bytes += size
            if compiled.kept:
                self._kept_bytes += size
                if compiled.bytes > MAX_BYTES or self._kept_bytes > MAX_KEPT_BYTES:
                    self._discard(next(k for k, one in self._kept.items() if one is compiled))

    def discard(self, grammar: Grammar) -> None:
        """Compile the grammar anew for the next request: this one's states are used up."""
        with self._lock:
            self._discard(_key(grammar))

    @property
    def kept_bytes(self) -> int:
        """Memory that the grammars kept hold, estimated."""
        return self._kept_bytes

    # -- with the lock held ------------------------------------------------------------------

    def _use(self, key: bytes, kept: CompiledGrammar) -> CompiledGrammar:
        kept.uses += 1
        kept.bytes += USE_BYTES
        self._kept_bytes += USE_BYTES
        self._kept.move_to_end(key)
        if kept.uses >= MAX_USES:
            self._discard(key)
        while self._kept and (len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES):
            self._discard(next(iter(self._kept)))
        return kept

    def _discard(self, key: bytes) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.kept = False
            self._kept_bytes -= kept.bytes

    def _compile(self, grammar: Grammar, source: str) -> LLMatcher:
        matcher = self._matcher_of(source)
        if matcher.is_error():
            raise rejection(grammar, matcher.get_error(), lambda s: self._matcher_of(s).get_error())
        return matcher

    def _matcher_of(self, source: str) -> LLMatcher:
        return LLMatcher(self.vocabulary.ll, source, log_level=0, limits=limits())


def _key(grammar: Grammar) -> bytes:
    text = f"{grammar.kind}\0{grammar.source}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()
