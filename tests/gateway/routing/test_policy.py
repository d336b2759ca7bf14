"""The choice of a target."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tidemill.gateway.routing.policy import POLICIES, Bounds, Facts, choose


def _taken(targets: list[Facts], prompt: int = 100, **more: object) -> set[str]:
    return {choose(targets, prompt, Random(i), **more).name for i in range(30)}  # type: ignore[arg-type]


def test_cached_prefix_is_preferred() -> None:
    targets = [Facts("a", 0, 0, 1000.0), Facts("b", 0.1, 900, 1000.0)]
    assert _taken(targets, 1000) == {"b"}


def test_a_long_queue_outweighs_a_cached_prefix() -> None:
    targets = [Facts("a", 0, 0, 1000.0), Facts("b", 1.1, 9000, 1000.0)]
    assert _taken(targets, 9000, bounds=Bounds(seconds=2)) == {"b"}
    assert _taken(targets, 9000, bounds=Bounds(seconds=1)) == {"a"}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_idle_targets_share_requests(policy: str) -> None:
    given = Counter[str]()
    random = Random(1)
    for _ in range(3000):
        targets = [Facts(name, 0, 0, 1000.0, given=given[name]) for name in "abc"]
        given[choose(targets, 100, random, policy=policy).name] += 1
    assert all(abs(n - 1000) < 150 for n in given.values()) and len(given) == 3


def test_misses_go_to_the_least_loaded_rather_than_one_with_few_prefixes() -> None:
    targets = [Facts("busy", 0.9, 0, 1000.0), Facts("free", 0, 0, 1000.0)]
    assert _taken(targets) == _taken(targets, policy="prefix") == {"free"}


def test_a_session_stays_where_it_was_unless_there_is_a_queue() -> None:
    here = Facts("here", 0.5, 0, 1000.0, session=True)
    full = Facts("here", 5.0, 0, 1000.0, session=True)
    other = Facts("other", 0, 0, 1000.0)
    assert _taken([here, other]) == {"here"}
    assert _taken([full, other]) == {"other"}


def test_cost_and_objective() -> None:
    cheap = Facts("cheap", 0.8, 0, 1000.0, price=1, carbon=9)
    quick = Facts("quick", 0, 0, 1000.0, price=5, carbon=3)
    assert _taken([cheap, quick], policy="cost") == {"cheap"}
    assert _taken([cheap, quick], policy="carbon") == {"quick"}
    assert _taken([cheap, quick], policy="latency", bounds=Bounds(objective=1)) == {"cheap"}
    assert _taken([cheap, quick], policy="latency", bounds=Bounds(objective=0.5)) == {"quick"}


def test_no_target() -> None:
    with pytest.raises(ValueError, match="no target"):
        choose([], 1, Random(1))
