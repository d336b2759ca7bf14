"""Compiles grammars to matchers, and caches them for later requests with the same grammar."""

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
"""Limits of the cache: number of compiled grammars, and their total memory."""

# A matcher and its copies share the states of their lexer, whose number grows as outputs differ: a
# usual request of 300 tokens adds some 100 KiB, an adversarial one 100 MiB. The growth measured
# while masks are computed counts, and a grammar is compiled again after `MAX_USES`.
USE_BYTES = 128 * 2**10
MAX_USES = 128
MAX_BYTES = MAX_KEPT_BYTES // 2
"""Of one cached grammar."""

# Estimated memory per byte of source, if the trial cannot measure it.
SOURCE_FACTOR = 110


@dataclass(slots=True)
class CompileStats:
    """Counters since the start: compile seconds, grammars compiled, reused and rejected."""

    seconds: float = 0.0
    compiled: int = 0
    reused: int = 0
    refused: int = 0


@dataclass(slots=True)
class CompiledGrammar:
    """A compiled grammar, shared by all requests that use it.

    Attributes:
        matcher: in its initial state; requests use copies.
        bytes: estimated memory that it and its copies share.
        uses: number of requests that used it.
        kept: it is in the cache.
    """

    matcher: LLMatcher
    bytes: int
    uses: int = 0
    kept: bool = True


class Compiler:
    """Compiles grammars for one vocabulary. Safe to call from several threads.

    Args:
        vocabulary: the model's.
        attempt: validates a grammar before it is compiled here, and returns the source to compile;
            None: validate in this process, which a hostile grammar can crash.
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
        """The grammar is in the cache."""
        with self._lock:
            return _key(grammar) in self._kept

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A new matcher in its initial state; see `compiled`."""
        return self.compiled(grammar).matcher.deep_copy()

    def compiled(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar, or return it from the cache.

        Raises:
            TidemillError: kind BAD_REQUEST naming the field: the language cannot be enforced
                completely, or not within the limits.
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
            # Memory measured with the trial's vocabulary is within a few percent of the model's.
            kept = CompiledGrammar(made, tried.heap_bytes or len(tried.source) * SOURCE_FACTOR)
            self._kept[key] = kept
            self._kept_bytes += kept.bytes
            return self._use(key, kept)

    def grown(self, compiled: CompiledGrammar, size: int) -> None:
        """Account for a grammar's growth in memory; evict it if a limit is exceeded."""
        with self._lock:
            compiled.bytes += size
            if compiled.kept:
                self._kept_bytes += size
                if compiled.bytes > MAX_BYTES or self._kept_bytes > MAX_KEPT_BYTES:
                    self._discard(next(k for k, one in self._kept.items() if one is compiled))

    def discard(self, grammar: Grammar) -> None:
        """Evict a grammar whose lexer states are exhausted; the next request compiles it again."""
        with self._lock:
            self._discard(_key(grammar))

    @property
    def kept_bytes(self) -> int:
        """Estimated memory of the cached grammars."""
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
