"""`[prices]` of a deployment file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.contract.prices import FREE, NANO, Price
from tidemill.deployment.deployment import Deployment
from tidemill.deployment.difference import difference

FILE = """
[prices]
currency = "EUR"
[prices.models]
"qwen3-*" = { input = 0.15, cached_input = 0.03, output = 0.6 }
brook = { input = 1 }
"""


def test_prices_are_read(deploy: Callable[..., Deployment]) -> None:
    prices = deploy(FILE).prices
    assert prices.currency == "EUR"
    assert prices.of("qwen3-8b") == Price(150_000_000, 30_000_000, 600_000_000)
    assert prices.of("brook") == Price(NANO, NANO, 0)
    assert prices.of("other") == FREE


def test_without_the_table_nothing_has_a_price(deploy: Callable[..., Deployment]) -> None:
    assert deploy("").prices.of("brook") == FREE


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{ input = -1 }", "brook.input must be an amount of money"),
        ("{ inputs = 1 }", "brook has no 'inputs'"),
        ("3", "brook must be a table"),
    ],
)
def test_a_wrong_price_is_named(problems: Callable[..., list[str]], value: str, said: str) -> None:
    [problem] = problems(f"[prices.models]\nbrook = {value}\n")
    assert said in problem and "prices.models" in problem


def test_a_reload_changes_them_in_place(deploy: Callable[..., Deployment]) -> None:
    old, new = deploy(FILE), deploy(FILE.replace("0.6", "0.7"))
    found = difference(old, new)
    assert [change.key for change in found.server] == ["models"]
    found.check()
