"""Regular expressions compared with `re`, and a grammar compared with a hand-written parser."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

import pytest
from helpers.constrained import Brook

from tidemill.contract.program import Grammar
from tidemill.grammar.languages import explained, llguidance_source
from tidemill.grammar.messages import VocabularyShape
from tidemill.grammar.trial import Trial

EXPRESSION = """
root ::= term (("+" | "-" | "*") term)*
term ::= number | "(" root ")"
number ::= "0" | [1-9] [0-9]*
"""


@pytest.fixture(scope="module")
def brook() -> Iterator[Brook]:
    engine = Brook(max_num_seqs=64)
    yield engine
    engine.close()


class Expression:
    """Draws expressions, each with a text that it matches."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def draw(self, depth: int) -> tuple[str, str]:
        kinds = [self.literal, self.group, self.digits]
        if depth:
            kinds += [self.sequence, self.sequence, self.either, self.repeated, self.optional]
        return self.rng.choice(kinds)(depth)

    def literal(self, depth: int) -> tuple[str, str]:
        text = self.rng.choice(["a", "bc", "Zoë", "x-y", ". ", "()", "end"])
        return re.escape(text), text

    def group(self, depth: int) -> tuple[str, str]:
        return self.rng.choice([("[a-f]", "c"), ("[^a-z]", "9"), ("[A-Z_]", "_"), (r"\w", "k")])

    def digits(self, depth: int) -> tuple[str, str]:
        low = self.rng.randint(1, 3)
        return f"[0-9]{{{low},{low + 2}}}", "4" * low

    def sequence(self, depth: int) -> tuple[str, str]:
        parts = [self.draw(depth - 1) for _ in range(self.rng.randint(2, 4))]
        return "".join(p[0] for p in parts), "".join(p[1] for p in parts)

    def either(self, depth: int) -> tuple[str, str]:
        parts = [self.draw(depth - 1) for _ in range(2)]
        return f"({parts[0][0]}|{parts[1][0]})", parts[self.rng.randint(0, 1)][1]

    def repeated(self, depth: int) -> tuple[str, str]:
        pattern, text = self.draw(depth - 1)
        low = self.rng.randint(1, 2)
        return f"({pattern}){{{low},{low + 1}}}", text * low

    def optional(self, depth: int) -> tuple[str, str]:
        pattern, text = self.draw(depth - 1)
        return f"({pattern})?", self.rng.choice(["", text])


def test_expressions_match_what_they_let_through(brook: Brook) -> None:
    drawn = [(p, t) for p, t in (Expression(seed).draw(3) for seed in range(60)) if t]
    requests = [
        brook.request(f"x{i}", "Go.", (Grammar("regex", p),), temperature=1.0, max_tokens=60)
        for i, (p, _) in enumerate(drawn)
    ]
    ended = 0
    for (pattern, example), (answer,) in zip(drawn, brook.run(requests), strict=True):
        assert re.fullmatch(pattern, example)
        assert answer.finish in ("stop", "length"), (pattern, answer.error)
        if answer.finish == "stop":
            ended += 1
            assert re.fullmatch(pattern, brook.text(answer)), (pattern, brook.text(answer))
    assert ended > len(drawn) // 2


def test_a_grammar_against_a_parser(brook: Brook) -> None:
    answers = brook.ask(
        "Calculate.", Grammar("gbnf", EXPRESSION), temperature=1.0, n=24, max_tokens=40
    )
    ended = [brook.text(a) for a in answers if a.finish == "stop"]
    assert ended and all(a.finish != "error" for a in answers)
    for text in ended:
        assert _expression(text, 0) == len(text), text


def _expression(text: str, at: int) -> int:
    """Where the longest expression from `at` on ends; -1: there is none."""
    at = _term(text, at)
    while at >= 0 and text[at : at + 1] in ("+", "-", "*"):
        at = _term(text, at + 1)
    return at


def _term(text: str, at: int) -> int:
    if text[at : at + 1] == "(":
        at = _expression(text, at + 1)
        return at + 1 if at >= 0 and text[at : at + 1] == ")" else -1
    found = re.compile(r"0|[1-9][0-9]*").match(text, at)
    return found.end() if found else -1


@pytest.mark.parametrize(
    "choices",
    [
        [f"word{i}" for i in range(4096)],
        [f"{i:050d}" for i in range(4096)],
        ['a"b\\n\n/é\u2028😀\x00', "(a|b)*", "^$", "a", "ab", "]", "x{2}", " ", "\t", "#-&~"],
    ],
    ids=["many", "long", "marks"],
)
def test_each_of_the_choices_can_be_written_and_nothing_else(choices: list[str]) -> None:
    trial = Trial(VocabularyShape(300, (), (2,)))
    compiled = trial.compiled(llguidance_source(Grammar("choice", json.dumps(choices), "field")))
    for text in choices[:: max(1, len(choices) // 20)]:
        matcher = compiled.deep_copy()
        for at, byte in enumerate(text.encode()):
            mask = int.from_bytes(matcher.compute_bitmask(), "little") >> 300 & (1 << 256) - 1
            begun = text.encode()[:at]
            after = {c.encode()[at] for c in choices if c.encode()[:at] == begun and c != begun
                     and len(c.encode()) > at}  # fmt: skip
            assert mask == sum(1 << b for b in after), (text, at, matcher.get_error())
            assert matcher.consume_token(300 + byte)
        assert matcher.is_accepting()


def test_a_rule_of_too_many_texts_is_told_what_would_do() -> None:
    rule = "root ::= " + " | ".join(f'"w{i}"' for i in range(3000))
    trial = Trial(VocabularyShape(300, (), (2,)))
    matcher = trial.compiled(llguidance_source(Grammar("gbnf", rule, "field")))
    matcher.compute_bitmask()
    assert not matcher.consume_token(300 + ord("w"))
    assert "regular expression" in explained(matcher.get_error())
