"""Speculation with a real model: the answers of single steps, token for token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from helpers.constrained import Answer, Brook, schema

from tidemill.contract.program import Forced, FreeText, Grammar, Phase
from tidemill.contract.request import EngineRequest

LIST = schema(
    json.dumps(
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"enum": ["red", "green"]}, "ok": {"type": "boolean"}},
                "required": ["name", "ok"],
                "additionalProperties": False,
            },
            "minItems": 4,
            "maxItems": 6,
        }
    )
)
PROMPT = "Repeat after me: the red fox and the green fox and the red fox and the green fox and"
PROGRAMS: list[tuple[Phase, ...]] = [
    (),
    (LIST,),
    (Grammar("regex", "(the (red|green) fox( and |\\. ))+"),),
    (FreeText(budget=12), Forced((40, 41)), Grammar("regex", "(ab|cd)+")),
]


@pytest.fixture(scope="module")
def plain() -> Iterator[Brook]:
    engine = Brook(prefix_caching=False)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=[{}, {"jump_ahead": False}, {"threads": 2, "depth": 1}])
def lookup(request: pytest.FixtureRequest) -> Iterator[Brook]:
    engine = Brook(speculate="lookup", **request.param)
    yield engine
    engine.close()


def batch(brook: Brook) -> list[EngineRequest]:
    made = []
    for i in range(16):
        how: dict[str, Any] = {
            "temperature": (0.0, 0.7, 1.0)[i % 3], "seed": i, "max_tokens": 60, "n": 1 + i % 2,
        }  # fmt: skip
        if i % 5 == 1:
            how |= {"logprobs": 2, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
        if i % 5 == 2:
            how |= {"min_tokens": 30, "logit_bias": {5: -100.0}}
        if i % 5 == 3:
            how |= {"dry_multiplier": 0.8, "dry_breaker_ids": (7,), "typical_p": 0.9}
        if i % 5 == 4:
            how |= {"xtc_probability": 0.6, "bad_words_ids": ((40, 41),)}
        if i == 4:  # without a grammar, whose forced tokens no ban prevents
            how |= {"no_repeat_ngram_size": 7}
        made.append(brook.request(f"r{i}", PROMPT, PROGRAMS[i % 4], **how))
    return made


def told(answers: list[list[Answer]]) -> list[list[tuple[Any, ...]]]:
    return [
        [(a.tokens, a.finish, a.stop_token, a.logprobs, a.error) for a in choices]
        for choices in answers
    ]


def without(request: EngineRequest) -> EngineRequest:
    """The same one token per step, those that a grammar forces as well."""
    return msgspec.structs.replace(request, speculation="off")


def test_answers_are_those_of_single_steps(plain: Brook, lookup: Brook) -> None:
    requests = batch(plain)
    want = [told([plain.run([without(one)])[0]])[0] for one in requests]
    assert told(lookup.run(requests)) == want
    alone = [told([lookup.run([one])[0]])[0] for one in requests[:6]]
    assert alone == want[:6]
    stats = lookup.stats()
    assert stats.drafted_tokens > 0 and stats.drafts_accepted > 100
    assert plain.stats().drafted_tokens == 0


def test_a_wrong_and_a_right_prediction(plain: Brook) -> None:
    (request,) = [plain.request("p", PROMPT, (), max_tokens=60)]
    ((want,),) = plain.run([request])
    before = plain.stats()
    for prediction, least in ((tuple(want.tokens), 40), ((5, 6, 7, 8), 0)):
        expecting = msgspec.structs.replace(request, prediction=prediction)
        ((answer,),) = plain.run([expecting])
        assert answer.tokens == want.tokens
        stats = plain.stats()
        assert stats.drafts_accepted - before.drafts_accepted >= min(least, len(want.tokens) - 4)
        before = stats


def test_what_a_controller_chooses_by_the_clock_changes_no_answer(plain: Brook) -> None:
    requests = batch(plain)
    want = [told([plain.run([without(one)])[0]])[0] for one in requests]
    engine = Brook(speculate="auto", always_draft=False, prefix_caching=False)
    try:
        for _ in range(2):  # the second time with what was learned
            assert told(engine.run(requests)) == want
        some_off = [
            msgspec.structs.replace(one, speculation="off") if i % 2 else one
            for i, one in enumerate(requests)
        ]
        assert told(engine.run(some_off)) == want
        figures = engine.stats().speculation
        assert figures is not None
        accepted = {of.drafter: of.accepted[0] for of in figures.drafters if of.accepted}
        assert accepted["grammar"] > 0 and accepted["lookup"] > 0
    finally:
        engine.close()


def test_answers_of_the_same_tenant_and_salt_are_looked_up() -> None:
    engine = Brook(speculate="lookup", lookup_answers=4096, prefix_caching=False)
    try:
        (first,) = [engine.request("one", "Tell me a story about a fox.", (), max_tokens=60)]
        found = []
        for tenant, salt in (("a", "a"), ("a", "a"), ("b", "a"), ("a", "b")):
            before = engine.stats().drafts_accepted
            asked = msgspec.structs.replace(first, tenant=tenant, cache_salt=salt)
            ((answer,),) = engine.run([asked])
            found.append((answer.tokens, engine.stats().drafts_accepted - before))
    finally:
        engine.close()
    assert len({tuple(tokens) for tokens, _ in found}) == 1
    alone = found[0][1]
    assert [accepted for _, accepted in found[2:]] == [alone, alone]
    assert found[1][1] > alone + 30, "nearly all of it was said before"
