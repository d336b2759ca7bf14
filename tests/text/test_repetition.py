"""Repetitions are found at the token that the definition names, however tokens arrive."""

from __future__ import annotations

import random

import pytest

from tidemill.base.errors import TidemillError
from tidemill.contract.repetition import RepetitionDetection
from tidemill.contract.sampling import SamplingParams
from tidemill.text.repetition import RepetitionFinder


def by_definition(tokens: list[int], rule: RepetitionDetection, min_tokens: int) -> int | None:
    for end in range(max(1, min_tokens), len(tokens) + 1):
        for period in range(rule.min_pattern_size, rule.max_pattern_size + 1):
            tail = tokens[max(0, end - period * rule.min_count) : end]
            if tail == tail[-period:] * rule.min_count:
                return end
    return None


def test_against_the_definition() -> None:
    rng = random.Random(3)
    found = 0
    for _ in range(400):
        low = rng.randint(1, 3)
        rule = RepetitionDetection(
            min_pattern_size=low, max_pattern_size=low + rng.randint(0, 3),
            min_count=rng.randint(2, 4),
        )  # fmt: skip
        tokens = [rng.randrange(rng.choice((1, 2, 3))) for _ in range(60)]
        least = rng.choice((0, 0, 10, 30))
        expected = by_definition(tokens, rule, least)
        finder, at, ended = RepetitionFinder(rule, least), 0, None
        while at < len(tokens) and ended is None:
            size = rng.randint(1, 5)
            until = finder.push(tokens[at : at + size])
            ended = None if until is None else at + until
            at += size
        assert ended == expected, (rule, tokens)
        found += ended is not None
    assert 100 < found < 400


@pytest.mark.parametrize(
    ("member", "values"),
    [
        ("max_pattern_size", {"max_pattern_size": 0, "min_count": 2}),
        ("max_pattern_size", {"max_pattern_size": 513, "min_count": 2}),
        ("min_count", {"max_pattern_size": 3, "min_count": 1}),
        ("min_pattern_size", {"max_pattern_size": 3, "min_count": 2, "min_pattern_size": 4}),
    ],
)
def test_a_wrong_member_is_named(member: str, values: dict[str, int]) -> None:
    with pytest.raises(TidemillError) as caught:
        SamplingParams(repetition_detection=RepetitionDetection(**values))
    assert caught.value.param == f"repetition_detection.{member}"


def test_a_rule_may_be_a_dict() -> None:
    rule = {"max_pattern_size": 3, "min_count": 2}
    params = SamplingParams(repetition_detection=rule)  # type: ignore[arg-type]
    assert params == SamplingParams(repetition_detection=RepetitionDetection(**rule))
    with pytest.raises(TidemillError, match=r"repetition_detection: .*min_count"):
        SamplingParams(repetition_detection={"max_pattern_size": 3})  # type: ignore[arg-type]
