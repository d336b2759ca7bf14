"""Rewritten patterns without look-around match the same texts, compared with Python's `re`."""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress

import pytest
from helpers.schema_language import allows, rejection

from tidemill.grammar.schema.automaton import Budget
from tidemill.grammar.schema.lookaround import MAX_PATTERN, is_needed, without

PATTERNS = [
    r"^(?!\s*$).+",
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",  # pydantic's Decimal
    r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,2}|(?=[\d.]{1,4}0*$)\d{0,2}\.\d{0,2}0*)$",
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
    r"^(?=.{1,6}\.?$)[a-z0-9](?:[a-z0-9-]{0,6}[a-z0-9])?(?:\.[a-z0-9]+)*\.?$",
    r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d).{3,}$",
    r"^(?!-)[A-Za-z0-9-]{1,5}(?<!-)$",
    r"^(?!.*foo).*$",
    r"^(?!(?:con|prn|aux)$)[a-z]+$",
    r"^(?!\s)(?!.*\s$).+$",
    r"^(?!x$)",
    r"(?!.*@)ab",
    r"fo+(?=bar)",
    r"^a(?!b)|^c$",
    r"^(a(?=b|a)){1,2}b*$",
    r"^(?:(?=\d)\d{3})?x$",
    r"^[^\s].*(?<=[a-z])$",
    r"(?=^.{2}$)^\w*$",
]
ALPHABET = "abx1. -W@T+ofBAP"
WORDS = [
    "foo",
    "foobar",
    "foobarx",
    "con",
    "conx",
    "P1W",
    "P1Y2M",
    "PT",
    "PT5H",
    "P1Y1W",
    "aA1",
    "a.b@c.de",
    ".a@c.de",
    "a..b@c.de",
    "1.50",
    "+1.5",
    "-.",
    "123x",
    "ab-",
    "-ab",
    "abc.de.",
]


def texts(count: int) -> list[str]:
    rng = random.Random(2)
    drawn = ("".join(rng.choices(ALPHABET, k=rng.randint(0, 6))) for _ in range(count))
    return ["", *WORDS, *drawn]


def python(pattern: str) -> re.Pattern[str]:
    """Rust's spelling of a code point and of any character, in Python's."""
    pattern = re.sub(r"\\x\{([0-9A-F]+)\}", lambda m: f"\\U{int(m[1], 16):08x}", pattern)
    return re.compile(pattern.replace("(?s:.)", r"[\s\S]"))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_texts_match(pattern: str) -> None:
    assert is_needed(pattern)
    made = without(pattern, Budget())
    assert not any(map(is_needed, made))
    parts, whole = [python(part) for part in made], re.compile(pattern)
    found = [text for text in texts(2500) if whole.search(text)]
    assert found == [text for text in texts(2500) if all(part.search(text) for part in parts)]
    schema = {"type": "string", "pattern": pattern}
    for text in (*found[:6], *WORDS):
        quoted = f'"{text}"'
        assert allows(schema, quoted) is bool(whole.search(text)), text


def test_where_readers_differ_all_must_match() -> None:
    schema = {"type": "string", "pattern": r"^(?!\s*$).*"}
    for blank in ("\u00a0", "\u0085", "\ufeff", "\u3000"):
        assert not allows(schema, f'"{blank}"') and allows(schema, f'"{blank}x"')
    assert not allows({"type": "string", "pattern": r"^(?!x$)[\s\S]*$"}, '"x\\n"')


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?<=a)b",
        r"^(?:(?!ab).)*$",
        r"(?=\b)a",
        r"^(?!\p{L})a$",
        r"^(?=a",
        r"(?i:(?=a))",
        r"(?=a)\1",
        "^(?!" + "a" * MAX_PATTERN + ")",
        r"^(?!.*a.{12}$)x",
    ],
)
def test_what_is_not_understood_is_rejected_by_place(pattern: str) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": pattern}}}
    assert rejection(schema)[0] == "s.properties.a.pattern"


HOSTILE = [
    "^(?!" + "(a?){30}" * 30 + "b$)",
    "(?=" * 45 + "a" + ")" * 45,
    r"^(?!(.*a.{30}){9}$)",
    "^" + "(?!a{0,900})" * 90,
    "^(?=" + "(a|b?){0,4}" * 100 + "(?!x))",
    "(?!(((a*)*)*b)*c{1000})",
    "^(?!" + "|".join(f"{chr(97 + i)}.*{chr(98 + i)}" for i in range(20)) + ")",
]


@pytest.mark.parametrize("pattern", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_patterns_take_bounded_time(pattern: str) -> None:
    begun = time.thread_time()
    with suppress(ValueError):
        without(pattern, Budget())
    assert time.thread_time() - begun < 2


def test_a_pattern_is_worked_out_once_in_a_schema() -> None:
    fields = {f"p{i}": {"type": "string", "pattern": PATTERNS[4]} for i in range(60)}
    assert allows({"type": "object", "properties": fields}, '{"p59": "P1W"}')
    many = {f"p{i}": {"pattern": rf"^(?!(?:con|prn|aux){i}$)[a-z]+"} for i in range(99)}
    assert "too many steps" in rejection({"properties": many})[1]
