"""Languages compiled to matchers, kept for the next request that asks for the same one."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, grammar_from

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError, bad_request
from tidemill.contract.program import Grammar
from tidemill.grammar import schema
from tidemill.grammar.vocabulary import Vocabulary

MAX_SOURCE_BYTES = 256 * 1024
MAX_KEPT = 256
MAX_KEPT_BYTES = 8 * 2**20
"""Compiled languages kept, and the bytes of their sources together."""

# What one step of a parser may cost before it gives up: some milliseconds. Beyond it the request
# ends with an error of its own; the others' tokens come in time.
STEP_FUEL = 200_000
COMPILE_FUEL = 2_000_000

_REGEX_HINT = (
    "; expressions are those of Rust's regex crate, without look-around and back-references"
)


@dataclass(slots=True)
class CompileStats:
    """Counters since the start: seconds of compiling, languages compiled, found again, refused."""

    seconds: float = 0.0
    compiled: int = 0
    reused: int = 0
    refused: int = 0


class Compiler:
    """Compiles languages for one vocabulary. Safe to call from several threads.

    Args:
        vocabulary: the model's.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.stats = CompileStats()
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._kept_bytes = 0

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A matcher at the beginning of a language, the caller's own.

        Raises:
            TidemillError: kind BAD_REQUEST naming the field: the language cannot be honoured in
                full, or not within the bounds.
        """
        key = (grammar.kind, grammar.source)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                self.stats.reused += 1
                return kept.deep_copy()
        begun = monotonic()
        try:
            made = self._compile(grammar)
        except TidemillError:
            with self._lock:
                self.stats.refused += 1
            raise
        with self._lock:
            self.stats.seconds += monotonic() - begun
            self.stats.compiled += 1
            self._keep(key, made)
            return made.deep_copy()

    def _keep(self, key: tuple[str, str], matcher: LLMatcher) -> None:
        if key not in self._kept:
            self._kept[key] = matcher
            self._kept_bytes += len(key[1])
        while len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
            dropped, _ = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped[1])

    def _compile(self, grammar: Grammar) -> LLMatcher:
        param = grammar.param
        size = len(grammar.source.encode("utf-8", errors="replace"))
        if size > MAX_SOURCE_BYTES:
            raise bad_request(
                param, f"{param} has {size} bytes; at most {MAX_SOURCE_BYTES} are compiled"
            )
        prepare = _KINDS.get(grammar.kind)
        if prepare is None:
            known = ", ".join(_KINDS)
            raise bad_request(param, f"{param}: there is no language {grammar.kind!r}: {known} are")
        source = prepare(grammar)
        matcher = LLMatcher(self.vocabulary.ll, source, log_level=0, limits=_limits())
        if matcher.is_error():
            raise self._refusal(grammar, matcher.get_error())
        return matcher

    def _refusal(self, grammar: Grammar, reason: str) -> TidemillError:
        param, reason = grammar.param, _one_line(reason)
        if grammar.kind in ("json_schema", "json_object"):
            for at, pattern in schema.patterns(json.loads(grammar.source or "{}")):
                alone = LLMatcher(
                    self.vocabulary.ll,
                    LLMatcher.grammar_from_regex(pattern),
                    log_level=0,
                    limits=_limits(),
                )
                if alone.is_error():
                    param += at
                    return bad_request(
                        param, f"{param}: {_one_line(alone.get_error())}{_REGEX_HINT}"
                    )
        hint = _REGEX_HINT if "regex" in reason else ""
        return bad_request(param, f"{param} cannot be enforced: {reason}{hint}")


def _limits() -> LLParserLimits:
    return LLParserLimits(
        initial_lexer_fuel=COMPILE_FUEL, step_lexer_fuel=STEP_FUEL, verbose_errors=True
    )


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text.split("<state>")[0]).strip()[:400]


def _json_schema(grammar: Grammar) -> str:
    source = schema.prepared(grammar.source, grammar.param)
    return LLMatcher.grammar_from_json_schema(source)


def _json_object(grammar: Grammar) -> str:
    return _json_schema(Grammar("json_schema", '{"type":"object"}', grammar.param))


def _choice(grammar: Grammar) -> str:
    try:
        choices = json.loads(grammar.source)
    except ValueError:
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) for c in choices):
        raise bad_request(grammar.param, f"{grammar.param} must be a list of at least one string")
    if len(choices) > schema.MAX_ENUM:
        raise bad_request(
            grammar.param, f"{grammar.param} has {len(choices)} choices; at most {schema.MAX_ENUM}"
        )
    if "" in choices:
        raise bad_request(grammar.param, f"{grammar.param}: a choice is empty; leave it out")
    return _checked(grammar, "choice")


def _checked(grammar: Grammar, form: str) -> str:
    """llguidance's own form of a language that it reads as text."""
    try:
        return grammar_from(form, grammar.source)  # type: ignore[arg-type]
    except Exception as error:  # its readers raise whatever they meet
        raise bad_request(
            grammar.param, f"{grammar.param} cannot be read: {_one_line(str(error))}"
        ) from None


_KINDS: dict[str, Callable[[Grammar], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": lambda g: _checked(g, "regex"),
    "choice": _choice,
    "lark": lambda g: _checked(g, "lark"),
    "gbnf": lambda g: _checked(g, "gbnf"),
}
