"""Policies compared on a simulated fleet; the promises of docs/gateway.md in figures."""

from __future__ import annotations

from random import Random

import pytest
from helpers.fleet import RATE, Ask, run


def _asks(number: int, load: float, prefixes: int, shared: int, own: list[int]) -> list[Ask]:
    """Requests as they come to four engines; `load`: of their work if nothing were cached."""
    random, now, found = Random(7), 0.0, []
    for _ in range(number):
        ask = Ask(now, random.randrange(prefixes), shared, random.choice(own))
        now += random.expovariate(4 * load * RATE / (shared + sum(own) / len(own)))
        found.append(ask)
    return found


def _at(times: list[float], share: float) -> float:
    return times[int(share * (len(times) - 1))]


def test_shared_system_prompts() -> None:
    asks = _asks(3000, 0.9, 40, 2000, [50, 100, 200])
    ours, hits = run(asks, "predicted")
    others, few = run(asks, "round-robin")
    assert 2 * _at(ours, 0.5) <= _at(others, 0.5)
    # The oracle: every prefix is computed once, by one engine that keeps all of them.
    _, most = run(asks, "predicted", engines=1, cache=10**9)
    assert hits >= most - 0.05 and few < 0.6


@pytest.mark.parametrize("gateways", [2, 3])
def test_several_gateways_agree_on_the_engines_of_prompts(gateways: int) -> None:
    """Without a word between them."""
    asks = _asks(3000, 0.7, 40, 2000, [50, 100, 200])
    _, most = run(asks, "predicted", engines=1, cache=10**9)
    _, hits = run(asks, "predicted", gateways=gateways)
    _, without = run(asks, "predicted", gateways=gateways, homes=False)
    assert hits >= most - 0.05 and without < 0.85


def test_prompts_that_come_once_are_spread_all_the_same() -> None:
    asks = [Ask(ask.at, i, 448, 52) for i, ask in enumerate(_asks(3000, 0.7, 10**9, 1, [499]))]
    ours, _ = run(asks, "predicted")
    others, _ = run(asks, "round-robin")
    for share in (0.5, 0.9, 0.99):
        assert _at(ours, share) <= 1.05 * _at(others, share)


def test_skewed_lengths() -> None:
    asks = _asks(3000, 0.6, 10**9, 1, [100] * 199 + [8000])
    ours, _ = run(asks, "predicted")
    others, _ = run(asks, "least-connections")
    assert 2 * _at(ours, 0.99) <= _at(others, 0.99)


def test_uniform_traffic_is_no_worse_than_round_robin() -> None:
    asks = [Ask(ask.at, i, 1, 500) for i, ask in enumerate(_asks(3000, 0.7, 10**9, 1, [500]))]
    ours, _ = run(asks, "predicted")
    others, _ = run(asks, "round-robin")
    for share in (0.5, 0.9, 0.99):
        assert _at(ours, share) <= 1.05 * _at(others, share)
