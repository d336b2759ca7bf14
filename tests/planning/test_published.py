"""Predictions for described devices beside what others have measured on them."""

from __future__ import annotations

import pytest
from helpers import published
from helpers.published import CASES, Case


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.device}-{c.model}-{c.bits}-{c.batch}-{c.prompt}-{c.output}"
)
def test_a_published_measurement_is_predicted_within_a_quarter(case: Case) -> None:
    value, low, high = case.predicted()
    assert low < value < high
    assert abs(case.error) <= 0.25


def test_intervals_hold_for_measurements_that_nothing_was_fitted_to() -> None:
    others = [case for case in CASES if not case.fitted]
    inside = [
        case for case in others if case.predicted()[1] <= case.measured <= case.predicted()[2]
    ]
    assert len({(case.device, case.model) for case in others}) >= 8
    assert len(inside) >= 0.9 * len(others)


def test_the_table_in_the_docs_is_what_is_predicted() -> None:
    assert published.table() in published.DOC.read_text(), "tests/helpers/published.py --write"
