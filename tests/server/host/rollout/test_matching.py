"""Blocks: what both versions meet cancels, what differs stays, outliers are bounded."""

from __future__ import annotations

import math
import random

import pytest

from tidemill.server.host.rollout.matching import (
    BASELINE,
    VARIANT,
    Block,
    Difference,
    block_length,
)


def test_the_rarer_version_has_two_in_a_block_on_average() -> None:
    assert [block_length(s) for s in (0.01, 0.25, 0.5, 0.9)] == [200, 8, 4, 20]


def test_shares_are_compared_as_they_are() -> None:
    block = Block()
    assert block.add_share(BASELINE, 0.0, 4) is None
    assert block.add_share(VARIANT, 1.0, 4) is None
    assert block.add_share(BASELINE, 1.0, 4) is None
    assert block.add_share(VARIANT, 1.0, 4) == Difference(0.5, 1.0)


def test_a_block_without_both_versions_goes_on_for_as_many_again() -> None:
    block = Block()
    for _ in range(2):
        assert block.add_share(BASELINE, 0.0, 2) is None
    assert block.add_share(VARIANT, 1.0, 2) is None  # not at once: this would prefer its time
    assert block.add_share(BASELINE, 0.0, 2) == Difference(1.0, 1.0)


def test_the_end_of_a_step_closes_a_block_that_has_both() -> None:
    block = Block()
    block.add_share(BASELINE, 0.0, 4)
    assert block.end_step(relative=False) is None
    block.add_share(VARIANT, 1.0, 4)
    assert block.end_step(relative=False) is None, "the dropped observation came back"
    block.add_share(VARIANT, 1.0, 4)
    block.add_share(BASELINE, 0.0, 4)
    assert block.end_step(relative=False) == Difference(1.0, 1.0)


def feed(ratio: float, *, blocks: int, drift: float = 0.0, outliers: float = 0.0) -> list[float]:
    """Effects of blocks of four log-normal values, two of each version."""
    rng, block, effects = random.Random(7), Block(), []
    for k in range(blocks):
        load = drift * math.sin(k / 40)
        for arm in (BASELINE, VARIANT, VARIANT, BASELINE):
            value = load + rng.gauss(0, 0.4) + (math.log(ratio) if arm == VARIANT else 0)
            if rng.random() < outliers:
                value += 20
            found = block.add_log(arm, value, 4)
            if found is not None:
                assert -1 <= found.x <= 1
                effects.append(found.x / found.a)
    assert len(effects) == blocks - 1, "the first block finds the centre only"
    return effects


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_the_mean_difference_is_the_log_of_the_ratio() -> None:
    assert mean(feed(1.3, blocks=2000)) == pytest.approx(math.log(1.3), abs=0.03)
    assert mean(feed(1.0, blocks=2000)) == pytest.approx(0, abs=0.03)


def test_a_shared_load_that_changes_a_hundredfold_cancels() -> None:
    assert mean(feed(1.3, blocks=4000, drift=2.3)) == pytest.approx(math.log(1.3), abs=0.04)


def test_outliers_are_clipped_and_never_enlarge_the_effect() -> None:
    effects = feed(1.3, blocks=4000, outliers=0.02)
    assert 0.18 < mean(effects) < math.log(1.3) + 0.03
    assert max(map(abs, effects)) < 6


def test_the_scale_of_a_block_comes_from_earlier_ones() -> None:
    block = Block(center=0.0, scale=0.5)
    for value in (-9.0, 9.0, 9.0, -9.0):
        found = block.add_log(BASELINE if value < 0 else VARIANT, value, 4)
    assert found == Difference(pytest.approx(1.0), pytest.approx(1 / 3))
    assert block.scale > 0.5
