"""Grammars with very long forced runs advance token by token, with the same language."""

from __future__ import annotations

import json
import time

import pytest

from tidemill.contract.program import Grammar
from tidemill.grammar.forcing import embedded_schemas, may_force_much, without_forcing
from tidemill.grammar.languages import llguidance_source
from tidemill.grammar.messages import VocabularyShape
from tidemill.grammar.trial import Trial

LONG = "c" * 5000
FORCE = [
    ("regex", "(c){2147483648}"),
    ("regex", "[ab]{20}(c){5000}"),
    ("regex", "[ab](((cd){20}){30}){10}"),
    ("regex", r"a?\x{63}{5000}"),
    ("regex", "a|b" + LONG),
    ("lark", "start: /[ab]{20}(c){5000}/"),
    ("lark", f'start: /[ab]/ "{LONG}"'),
    ("lark", 'start: A\nA: "abcdefgh" B{30}\nB: "c"{50}'),
    ("lark", f'start: "a" | %json {{"const": "{LONG}"}}'),
    ("lark", 'start: /[ab]{5000}/\n%llguidance {"no_forcing": false}\n'),
    ("gbnf", 'root ::= "a" | "b" "c"{5000}'),
    ("choice", json.dumps(["a", LONG])),
    ("json_schema", json.dumps({"enum": ["a", LONG]})),
    ("json_schema", json.dumps({"type": "string", "pattern": "^(a|c{5000})$"})),
]
DO_NOT = [
    ("regex", r"\d{4}-\d{2}-\d{2}T(\d{2}:){2}\d{2}(\.\d{3,6})?Z"),
    ("regex", "[a-z]{0,100000}"),
    ("regex", r"\p{L}{1,5000}"),
    ("lark", 'start: "<tool_call>" /[a-z]{1,64}/ %json {"type": "string", "maxLength": 9000}'),
    ("choice", json.dumps(["yes", "no"])),
    ("choice", json.dumps(["no \u2009{9999}", "yes"])),
    ("json_object", ""),
    ("json_schema", json.dumps({"type": "array", "items": {"pattern": "^[0-9]{4}$"}})),
]


def grammar_of(kind: str, source: str) -> Grammar:
    return Grammar(kind, source, "field")


@pytest.mark.parametrize(("kind", "source"), FORCE, ids=range(len(FORCE)))
def test_no_step_looks_for_a_very_long_run(kind: str, source: str) -> None:
    trial = Trial(VocabularyShape(300, (), (2,)))
    matcher = trial.compiled(llguidance_source(grammar_of(kind, source)))
    assert not matcher.is_error(), matcher.get_error()
    slowest = 0.0
    for _ in range(40):
        begun = time.thread_time()
        assert len(matcher.compute_ff_tokens()) <= 1
        mask = int.from_bytes(matcher.compute_bitmask(), "little") >> 300
        slowest = max(slowest, time.thread_time() - begun)
        if not mask:
            break
        matcher.consume_token(300 + mask.bit_length() - 1)  # b or c: the way that is long
    assert slowest < 0.2


@pytest.mark.parametrize(("kind", "source"), DO_NOT, ids=range(len(DO_NOT)))
def test_usual_grammars_keep_what_is_foreseen(kind: str, source: str) -> None:
    assert "no_forcing" not in llguidance_source(grammar_of(kind, source))


def test_the_language_is_the_same() -> None:
    trial = Trial(VocabularyShape(300, (), (2,)))
    schema = {"type": "object", "properties": {"a": {"const": "xyz"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    for kind, source, text in (
        ("json_schema", json.dumps(schema), '{ "a" :\n"xyz"}'),
        ("regex", r"a/b\n(c|d)+", "a/b\ncd"),
        ("choice", '["one", "two\\n"]', "two\n"),
        ("lark", 'start: /a+/ "b" // end', "aab"),
    ):
        plain = llguidance_source(grammar_of(kind, source))
        for one in (plain, without_forcing(plain)):
            matcher = trial.compiled(one)
            for byte in text.encode():
                allowed = int.from_bytes(matcher.compute_bitmask(), "little")
                assert allowed >> 300 + byte & 1, (kind, one)
                matcher.consume_token(300 + byte)
            assert matcher.is_accepting()


def test_a_long_run_that_was_not_foreseen_is_found_by_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.grammar.languages.may_force_much", lambda *_: False)
    trial = Trial(VocabularyShape(300, (), (2,)))
    tried = trial.attempt(grammar_of("regex", "ab(c){5000}"))
    assert "no_forcing" in tried.source and tried.heap_bytes < 2**20


def test_reading_grammars_takes_no_quadratic_time() -> None:
    begun = time.thread_time()
    for text in ("%json", '%json "', "%json [", "(", "{9}", "[", "\\", '"', "/", "|"):
        for kind in ("lark", "regex"):
            may_force_much(grammar_of(kind, text * 20_000), text * 20_000)
        embedded_schemas(text * 20_000)
    assert time.thread_time() - begun < 20
