"""Shares of a bound: one client may have all of it, and nobody is refused for that."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.server.admission.shares import Shares


def test_alone_it_may_have_everything_and_no_more() -> None:
    shares = Shares(100)
    assert shares.excess("a", 100) == 0
    shares.take("a", 100)
    assert shares.excess("a", 1) == 1
    shares.give_back("a", 60)
    assert shares.excess("a", 60) == 0 and shares.of("a") == shares.total == 40


def test_others_have_their_shares_and_what_is_over_is_given_back_first() -> None:
    shares = Shares(100)
    shares.take("a", 100)
    assert shares.excess("b", 50) == 0
    assert shares.excess("b", 51) == 1
    assert shares.excess("c", 80, weight=4.0) == 0
    shares.take("b", 50)
    assert shares.excess("a", 1) == 51  # the total must fall first
    shares.give_back("a", 100)
    assert shares.excess("a", 50) == 0 and shares.of("a") == 0


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 150)), max_size=60))
def test_the_total_is_bounded_and_shares_are_kept(asked: list[tuple[str, int]]) -> None:
    shares = Shares(120)
    for client, amount in asked:
        allowed = shares.excess(client, amount) == 0
        if shares.of(client) + amount <= shares.share(client):
            assert allowed
        if allowed:
            shares.take(client, amount)
    assert shares.total <= 120 * sum(1 / k for k in range(1, 7))
    held = [(c, shares.of(c)) for c in "abcdef"]
    assert shares.total == sum(amount for _, amount in held)
    for client, amount in held:
        shares.give_back(client, amount)
    assert shares.total == 0 and shares.share("a") == pytest.approx(120)
    assert math.isclose(shares.excess("a", 130), 10)
