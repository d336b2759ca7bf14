"""Bets and intervals: what they cover, when they decide, and that looking often does no harm."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tidemill.server.host.rollout.evidence import Evidence, log_grid, share_grid

GRID = share_grid((0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5))


def evidence(*limits: tuple[float, int], alpha: float = 0.05) -> Evidence:
    return Evidence.on_grid(GRID, list(limits), 1 / alpha)


def errors(rng: random.Random, variant: float, baseline: float) -> float:
    """A difference as a block makes it: two requests of either version."""
    return sum((rng.random() < variant) - (rng.random() < baseline) for _ in range(2)) / 2


def test_a_limit_and_the_interval_decide_together() -> None:
    rng, found = random.Random(1), evidence((0.015, 1))
    [limit] = found.limits
    while not limit.beyond.refuted:
        assert found.low is None or found.low < 0.015
        found.add(errors(rng, 0.2, 0.01), 1.0)
    assert found.low is not None and found.low >= 0.015
    assert found.blocks < 150
    assert not limit.within.refuted


def test_the_side_of_a_limit_says_what_is_beyond() -> None:
    low, high = evidence((-0.1, -1)), evidence((0.1, 1))
    for _ in range(60):
        low.add(-0.5, 1.0)
        high.add(-0.5, 1.0)
    assert low.limits[0].beyond.refuted and not low.limits[0].within.refuted
    assert high.limits[0].within.refuted and not high.limits[0].beyond.refuted


def test_equal_versions_are_shown_to_be_within_and_the_interval_closes_around_nothing() -> None:
    rng, found = random.Random(2), evidence((0.02, 1))
    for _ in range(6000):
        found.add(errors(rng, 0.01, 0.01), 1.0)
    assert found.limits[0].within.refuted
    assert found.low is not None and found.high is not None
    assert found.low < 0 < found.high <= 0.02
    assert found.effect == pytest.approx(0, abs=0.005)


def test_no_failure_at_all_is_evidence_too() -> None:
    found = evidence((0.01, 1))
    for _ in range(500):
        found.add(0.0, 1.0)
    assert found.high is not None and found.high <= 0.01


def test_the_scale_of_a_block_does_not_change_the_effect() -> None:
    found = Evidence.on_grid(log_grid((0.1, 0.2, 0.3, 0.5)), [], 20)
    rng = random.Random(3)
    for k in range(3000):
        a = (0.2, 0.5, 1.5)[k % 3]
        found.add(0.18 * a + rng.uniform(-0.2, 0.2), a)
    assert found.effect == pytest.approx(0.18, abs=0.02)
    assert found.low is not None and found.high is not None
    assert found.low < 0.18 < found.high < 0.27


def test_a_version_that_gets_worse_late_is_found() -> None:
    rng, found = random.Random(4), evidence((0.02, 1))
    for _ in range(3000):
        found.add(errors(rng, 0.0, 0.0), 1.0)
    assert found.limits[0].within.refuted
    for _ in range(3000):
        found.add(errors(rng, 0.5, 0.0), 1.0)
    assert found.limits[0].beyond.refuted


def test_a_long_run_stays_finite() -> None:
    found = evidence((0.02, 1))
    for _ in range(20_000):
        found.add(-1.0, 1.0)
    beyond = found.limits[0].beyond
    assert beyond.open and 0 < beyond.e_value < 1e-200


def bernoulli(rng: random.Random) -> float:
    return float(rng.random() < 0.02)


def two_points(rng: random.Random) -> float:
    """Rarely far below, otherwise just above the mean: what normal approximations get wrong."""
    return -0.78 if rng.random() < 0.05 else 0.02 + 0.8 / 19


def drifting(rng: random.Random) -> float:
    """Spread that changes with time; the mean of 0.02 stays."""
    return 0.02 + rng.choice((0.05, 0.9)) * rng.choice((-1, 1))


@pytest.mark.parametrize("draw", [bernoulli, two_points, drifting])
def test_at_the_limit_a_false_decision_is_rare_although_every_block_is_looked_at(
    draw: Callable[[random.Random], float],
) -> None:
    # alpha of 0.1 in either direction. A test of fixed size, looked at as often, is wrong in half
    # of the runs.
    wrong_above = wrong_below = 0
    for seed in range(100):
        rng = random.Random(seed)
        found = Evidence.on_grid((), [(0.02, 1)], 10)
        for _ in range(400):
            found.add(draw(rng), 1.0)
        wrong_above += found.limits[0].beyond.refuted
        wrong_below += found.limits[0].within.refuted
    # The 99.9 % quantile of a binomial of 100 with 0.1 is 20.
    assert wrong_above <= 20 and wrong_below <= 20


def test_a_gain_and_a_loss_of_unlike_size_cancel_at_a_limit_far_from_nothing() -> None:
    # The mean of x is the limit, 0.5. Losses relative to it reach -1.5 and are not cut off: the
    # stakes are smaller for it.
    found = Evidence.on_grid((), [(0.5, 1)], 20)
    for k in range(800):
        found.add(-1.0 if k % 4 == 0 else 1.0, 1.0)
        assert not found.limits[0].beyond.refuted
