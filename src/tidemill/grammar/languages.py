"""Validates grammars of each kind and converts them to llguidance's syntax, in Python only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from llguidance import LLMatcher, LLParserLimits, grammar_from

from tidemill.base.errors import TidemillError, bad_request
from tidemill.contract.program import Grammar
from tidemill.grammar import schema
from tidemill.grammar.forcing import may_force_much, without_forcing

MAX_SOURCE_BYTES = 256 * 1024

# Limit of one parser step: some milliseconds. A request that exceeds it fails with an error, so it
# does not delay other requests.
STEP_FUEL = 200_000
COMPILE_FUEL = 2_000_000

# States are not freed while a matcher or a copy of it exists; each takes 0.4 to 2 KiB. A string
# with a length limit takes several states per character; this suffices for 50,000 characters.
MAX_LEXER_STATES = 250_000

_UNQUOTED = re.compile(r"[^A-Za-z0-9 ]")  # what may mean something in an expression

_REGEX_HINT = (
    "; expressions are those of Rust's regex crate, without look-around and back-references"
)

_ROW_HINT = (
    "; a rule of many texts is read better as one regular expression: in Lark /one|two|three/, "
    "or a list of choices"
)


def limits() -> LLParserLimits:
    """The limits of compiling a grammar and of a step of its parser."""
    return LLParserLimits(
        initial_lexer_fuel=COMPILE_FUEL,
        step_lexer_fuel=STEP_FUEL,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=True,
    )


def check_size(grammar: Grammar) -> None:
    """Raises TidemillError (BAD_REQUEST) for a source of more than `MAX_SOURCE_BYTES`."""
    size = len(grammar.source.encode("utf-8", errors="replace"))
    if size > MAX_SOURCE_BYTES:
        param = grammar.param
        raise bad_request(
            param, f"{param} has {size} bytes; at most {MAX_SOURCE_BYTES} are allowed"
        )


def llguidance_source(grammar: Grammar) -> str:
    """A grammar in llguidance's syntax.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field that cannot be enforced completely.
    """
    check_size(grammar)
    prepare = _KINDS.get(grammar.kind)
    if prepare is None:
        param, known = grammar.param, ", ".join(_KINDS)
        raise bad_request(
            param, f"{param}: unknown grammar kind {grammar.kind!r}; known are {known}"
        )
    source = prepare(grammar)
    return without_forcing(source) if may_force_much(grammar, source) else source


def rejection(grammar: Grammar, reason: str, rejects: Callable[[str], str]) -> TidemillError:
    """The error for a grammar that llguidance rejects.

    Args:
        grammar: the request's.
        reason: llguidance's error.
        rejects: compiles a source in llguidance's syntax; returns its error, or an empty string.
    """
    param, reason = grammar.param, one_line(reason)
    if grammar.kind in ("json_schema", "json_object"):
        for at, pattern in schema.patterns(json.loads(grammar.source or "{}")):
            if alone := rejects(LLMatcher.grammar_from_regex(pattern)):
                param += at
                return bad_request(param, f"{param}: {one_line(alone)}{_REGEX_HINT}")
    hint = _REGEX_HINT if "regex" in reason else ""
    return bad_request(param, f"{param} cannot be enforced: {reason}{hint}")


def one_line(text: str) -> str:
    """An error of llguidance on one line, without the parser's state."""
    return re.sub(r"\s+", " ", text.split("<state>")[0]).strip()[:400]


def explained(error: str) -> str:
    """A parser's error on one line, with a remedy if one is known."""
    return one_line(error) + (_ROW_HINT if "Current row has" in error else "")


def _json_schema(grammar: Grammar) -> str:
    source = schema.prepared(grammar.source, grammar.param)
    return LLMatcher.grammar_from_json_schema(source)


def _json_object(grammar: Grammar) -> str:
    return _json_schema(Grammar("json_schema", '{"type":"object"}', grammar.param))


def _choice(grammar: Grammar) -> str:
    try:
        choices = json.loads(grammar.source)
    except (ValueError, RecursionError):
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) for c in choices):
        raise bad_request(grammar.param, f"{grammar.param} must be a list of at least one string")
    if len(choices) > schema.MAX_ENUM:
        raise bad_request(
            grammar.param, f"{grammar.param} has {len(choices)} choices; at most {schema.MAX_ENUM}"
        )
    if "" in choices:
        raise bad_request(grammar.param, f"{grammar.param}: a choice is empty; leave it out")
    # One expression: as a rule's alternatives they would fill a row of the parser at 2,000.
    source = "|".join(_UNQUOTED.sub(lambda found: f"\\x{{{ord(found[0]):x}}}", c) for c in choices)
    return grammar_from("regex", source)


def _checked(grammar: Grammar, form: str) -> str:
    """Convert a grammar with llguidance's own parser of its notation."""
    try:
        return grammar_from(form, grammar.source)  # type: ignore[arg-type]
    except Exception as error:  # its parsers raise exceptions of any type
        raise bad_request(
            grammar.param, f"{grammar.param} cannot be parsed: {one_line(str(error))}"
        ) from None


_KINDS: dict[str, Callable[[Grammar], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": lambda g: _checked(g, "regex"),
    "choice": _choice,
    "lark": lambda g: _checked(g, "lark"),
    "gbnf": lambda g: _checked(g, "gbnf"),
}
