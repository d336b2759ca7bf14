"""Prices of steps with drafts, of drafters and of waiting, from what was measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tidemill.contract.plan import Drafting
from tidemill.sched.cost import Load
from tidemill.sched.speculation.prices import DraftingPrice, Pace, StepPrices


class Line:
    """What a line through all steps says."""

    ready = True

    def predict(self, load: Load) -> float:
        return 0.010 + 0.001 * load.tokens


def load(tokens: int) -> Load:
    return Load(tokens, tokens, tokens)


def prices(measured: dict[int, float], times: int = 60) -> StepPrices:
    line: Any = Line()
    found = StepPrices(line)
    for _ in range(times):
        for tokens, seconds in measured.items():
            found.observe(load(tokens), seconds)
    return found


def test_without_measurements_it_is_the_line() -> None:
    assert prices({}).of_drafts(load(4), 4, 3) == pytest.approx([0.014, 0.015, 0.016, 0.017])


def test_steps_are_priced_as_they_were_measured_and_between_as_neighbours() -> None:
    # A tile of 4 rows: the second token costs, the third and fourth do not.
    found = prices({1: 0.010, 2: 0.015, 3: 0.015, 4: 0.015, 16: 0.030})
    of_one = found.of_drafts(load(1), 1, 15)
    assert of_one[:4] == pytest.approx([0.010, 0.015, 0.015, 0.015], rel=0.01)
    assert of_one[15] == pytest.approx(0.030, rel=0.01)
    assert all(a <= b for a, b in itertools.pairwise(of_one))
    assert found.of_drafts(load(8), 8, 0)[0] == pytest.approx(0.018 * 1.1, rel=0.1)


def test_more_tokens_never_cost_less() -> None:
    found = prices({2: 0.020, 4: 0.010})
    of_two = found.of_drafts(load(2), 2, 4)
    assert all(a <= b for a, b in itertools.pairwise(of_two))


def test_one_disturbed_step_changes_little() -> None:
    found = prices({1: 0.011})
    found.observe(load(1), 5.0)
    assert found.of_drafts(load(1), 1, 0)[0] < 0.011 * 1.25


@pytest.mark.parametrize(("call", "row"), [(0.002, 0.0), (0.0, 0.001), (0.003, 0.0005)])
def test_a_drafter_is_priced_by_call_and_row(call: float, row: float) -> None:
    price = DraftingPrice()
    assert price.parts() == (0.0, 0.0)
    for i in range(60):
        rows, longest = 1 + i % 8, 1 + i % 3
        price.observe(Drafting("draft", longest * (call + row * rows), rows, longest))
    assert price.parts() == pytest.approx((call, row), abs=1e-6)


def test_a_drafter_that_always_had_one_row() -> None:
    price = DraftingPrice()
    for _ in range(10):
        price.observe(Drafting("draft", 0.004, 1, 4))
    assert sum(price.parts()) == pytest.approx(0.001)


def test_waiting_is_the_difference_of_gaps() -> None:
    pace, now = Pace(), 0.0
    for i in range(200):
        ahead = i % 2 == 0
        now += 0.010 + (0.0001 if ahead else 0.0011)
        pace.observe(now, 0.010, ahead=ahead, goes_on=True)
    assert pace.waiting == pytest.approx(0.001, rel=0.01) and pace.gap == pytest.approx(0.0011)
    pace.observe(now + 0.012, 0.010, ahead=False, goes_on=False)
    before = pace.gap
    pace.observe(now + 60.0, 0.010, ahead=False, goes_on=True)
    assert pace.gap == before, "nothing was there to do"
