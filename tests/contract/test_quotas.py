"""Limits as they are written in files and flags."""

from __future__ import annotations

import pytest

from tidemill.base.errors import TidemillError
from tidemill.contract.prices import NANO
from tidemill.contract.quotas import MEASURES, Limit, merged, parse_limit, parse_limits


def test_names_short_names_and_soft_limits_are_read() -> None:
    table = {"tpm": 1000, "soft_tokens_per_minute": "800", "money-per-day": 2.5, "rpm": "1_000"}
    assert parse_limits(table) == (
        Limit("requests_per_minute", 1000),
        Limit("tokens_per_minute", 1000),
        Limit("tokens_per_minute", 800, soft=True),
        Limit("money_per_day", 5 * NANO // 2),
    )


@pytest.mark.parametrize("name", [p + m for m in MEASURES for p in ("", "soft_")])
@pytest.mark.parametrize("value", [0, 7, "none"])
def test_what_is_written_is_read_again(name: str, value: object) -> None:
    limit = parse_limit(name, value)
    assert limit.name == name
    assert parse_limit(limit.name, limit.value) == limit


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("tokens", 1), ("tpm", -1), ("tpm", 1.5), ("tpm", True), ("tpm", "x"), ("tpm", 10**16)),
        *(("money_per_day", "inf"), ("money_per_day", -0.1), ("money_per_day", 1e12)),
    ],
)
def test_a_wrong_limit_is_named(name: str, value: object) -> None:
    with pytest.raises(TidemillError, match=name):
        parse_limit(name, value)


def test_a_subjects_own_limit_replaces_the_default_of_the_same_measure() -> None:
    default = parse_limits({"rpm": 10, "tpm": 100, "soft_tpm": 50})
    own = parse_limits({"tpm": 300, "rpm": "none"})
    assert {limit.name: limit.amount for limit in merged(default, own)} == {
        "requests_per_minute": None,
        "tokens_per_minute": 300,
        "soft_tokens_per_minute": 50,
    }
