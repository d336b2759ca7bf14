"""Which texts count as endless repetition."""

from __future__ import annotations

import random

from tidemill.grammar.repetition import LIMIT, Repetition


def longest(tokens: list[int]) -> int:
    """The longest run without a new n-gram."""
    found, most = Repetition(), 0
    for token in tokens:
        found.add(token)
        most = max(most, found.length)
    return most


def test_a_cycle_counts_from_its_second_time_round() -> None:
    assert longest([1, 2, 3] * 400) == 1200 - 10
    assert longest([7] * 30) == 30 - 8
    assert longest(list(range(LIMIT * 3))) == 0


def test_records_of_one_form_are_no_cycle() -> None:
    """Rows that share names and punctuation and differ in a value."""
    rng = random.Random(1)
    rows = [[1, 2, 3, 4, 5, rng.randrange(9000), 6, 7, 8, 9, 10, 11, 12] for _ in range(900)]
    assert longest([token for row in rows for token in row]) < LIMIT // 10


def test_irregular_circles_count() -> None:
    """Turns of a few phrases in changing order."""
    rng = random.Random(2)
    phrases = [[i * 10 + j for j in range(9)] for i in range(4)]
    tokens = [token for _ in range(500) for token in rng.choice(phrases)]
    assert longest(tokens) >= LIMIT
