"""Quantiles and distinct counts in little memory."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest

from tidemill.server.host.rollout.routing import unit_hash
from tidemill.server.host.rollout.sketch import DistinctSketch, QuantileSketch


def test_quantiles_are_right_to_a_few_percent_and_memory_is_bounded() -> None:
    rng, sketch = random.Random(1), QuantileSketch()
    values = [rng.lognormvariate(0, 3) for _ in range(20_000)]
    for value in [*values, 0.0, -1.0, 1e300]:
        sketch.add(value)
    cuts = statistics.quantiles(values, n=100)
    for percent in (5, 50, 95, 99):
        assert sketch.quantile(percent / 100) == pytest.approx(cuts[percent - 1], rel=0.04)
    assert sketch.count == 20_003 and len(sketch.buckets) <= 712


def test_one_value_is_every_quantile() -> None:
    sketch = QuantileSketch()
    assert sketch.quantile(0.5) is None
    sketch.add(3.0)
    for share in (0.0, 0.5, 1.0):
        assert sketch.quantile(share) == pytest.approx(3.0, rel=0.03)


@pytest.mark.parametrize("distinct", [0, 1, 40, 1000, 5000])
def test_distinct_hashes_are_counted_however_often_they_come(distinct: int) -> None:
    sketch = DistinctSketch()
    for i in range(2 * distinct):
        sketch.add(unit_hash("chat", "unit", str(i % distinct)) // 100)  # a canary's low hashes
    assert sketch.count == pytest.approx(distinct, rel=0.08)


def test_sketches_survive_json() -> None:
    quantiles, distinct = QuantileSketch(), DistinctSketch()
    quantiles.add(2.0)
    distinct.add(77)
    for sketch in (quantiles, distinct):
        again = msgspec.json.decode(msgspec.json.encode(sketch), type=type(sketch))
        assert again == sketch
