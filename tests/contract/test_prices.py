"""Costs are exact integers, and a model finds its price by name, version or pattern."""

from __future__ import annotations

import pytest

from tidemill.base.errors import TidemillError
from tidemill.contract.prices import FREE, NANO, Price, Prices, money, money_text

PRICES = Prices.parse(
    {
        "small-*": {"input": 0.15, "cached_input": 0.075, "output": 0.6},
        "small-dear": {"input": 3, "output": 15},
        "*": {"output": 1},
    }
)


def test_a_request_costs_the_sum_of_its_tokens() -> None:
    assert PRICES.cost("small-a", 1_000_000, 0, 0) == 150_000_000
    assert PRICES.cost("small-a", 1_000_000, 400_000, 100) == 90_000_000 + 30_000_000 + 60_000


def test_the_cost_is_rounded_up_once() -> None:
    price = Price(input=1, output=1)
    assert price.cost(1, 0, 1) == 1
    assert price.cost(600_000, 0, 600_000) == 2
    assert price.cost(0, 0, 0) == 0


@pytest.mark.parametrize("cached", [0, 3, 10])
def test_the_worst_case_bounds_every_split_of_the_prompt(cached: int) -> None:
    dear_cache = Price(input=MILLIONTHS, cached_input=3 * MILLIONTHS, output=7 * MILLIONTHS)
    for price in (dear_cache, PRICES.of("small-a")):
        assert price.most(10, 5) >= price.cost(10, cached, 5)


MILLIONTHS = 10**6


def test_whole_names_come_before_patterns_and_versions_have_their_names_price() -> None:
    assert PRICES.of("small-dear").output == 15 * NANO
    assert PRICES.of("small-dear").cached_input == 3 * NANO  # without a price of their own
    assert PRICES.of("small-a@7") == PRICES.of("small-a")
    assert PRICES.of("other").output == NANO
    assert Prices().of("small-a") is FREE
    own = Prices.parse({"chat": {"input": 1}, "chat@2": {"input": 2}})
    assert [own.of(name).input // NANO for name in ("chat", "chat@1", "chat@2")] == [1, 1, 2]


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"m": {"input": -1}}, "prices.m.input"),
        ({"m": {"input": "nan"}}, "prices.m.input"),
        ({"m": {"input": True}}, "prices.m.input"),
        ({"m": {"output": 1e7}}, "prices.m.output"),
        ({"m": {"outptu": 1}}, "outptu"),
        ({"m": 3}, "prices.m"),
    ],
)
def test_a_wrong_entry_is_named(table: dict[str, dict[str, float]], named: str) -> None:
    with pytest.raises(TidemillError, match=named):
        Prices.parse(table)


def test_money_is_read_and_written_exactly() -> None:
    assert money("0.1", "x") + money(0.2, "x") == money("0.3", "x")
    assert [money_text(money(v, "x")) for v in ("0", "12.5", "0.000000001", "1234567")] == [
        "0.00",
        "12.50",
        "0.000000001",
        "1,234,567.00",
    ]


def test_a_changed_list_is_seen() -> None:
    prices = Prices.parse({"*": {"input": 1.0}})
    assert prices.of("brook") != FREE
    prices.become(Prices({}, "EUR"))
    assert (prices.of("brook"), prices.currency) == (FREE, "EUR")
