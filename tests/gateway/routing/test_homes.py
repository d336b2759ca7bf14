"""Homes of prompts."""

from __future__ import annotations

from collections import Counter

from tidemill.gateway.routing.homes import Trust, home

NAMES = ["a", "b", "c", "d"]


def test_homes_are_even_and_the_same_everywhere() -> None:
    keys = [b"%d" % i for i in range(2000)]
    found = Counter(home(NAMES, key) for key in keys)
    assert all(abs(n - 500) < 100 for n in found.values())
    assert [home(NAMES[::-1], key) for key in keys] == [home(NAMES, key) for key in keys]
    assert [home(NAMES, b"x"), home(NAMES, b"y"), home(NAMES, b"z")] == ["d", "a", "d"]


def test_a_target_that_goes_moves_its_own_keys_alone() -> None:
    for i in range(200):
        before = home(NAMES, b"%d" % i)
        if before != "d":
            assert home(NAMES[:3], b"%d" % i) == before


def test_there_is_none_without_a_key_or_a_choice() -> None:
    assert home(NAMES, b"") is None and home(["a"], b"x") is None


def test_trust_follows_what_is_found() -> None:
    trust = Trust()
    for _ in range(100):
        trust.learn(0, 1000)
    assert trust.share < 0.05
    for _ in range(100):
        trust.learn(2000, 1000)
    assert 0.9 < trust.share <= 1.0
