"""Meters in simulated time: what fits when, and clocks that step."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidemill.contract.quotas import MEASURES
from tidemill.server.quotas.meters import NEVER, SOON, Bucket, Gauge, Now, Window, make_meter

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
HOUR = 3600.0


def at(seconds: float, wall: float | None = None) -> Now:
    return Now(seconds, NOON + seconds if wall is None else wall)


def meter(name: str, amount: int) -> Bucket | Gauge | Window:
    made = make_meter(MEASURES[name], amount, at(0), soft=False)
    assert isinstance(made, Bucket | Gauge | Window)
    return made


def test_a_bucket_holds_a_minutes_amount_and_names_the_second_of_the_refill() -> None:
    bucket = meter("tokens_per_minute", 600)
    bucket.take(500, at(0))
    assert bucket.remaining(at(0)) == 100
    assert not bucket.fits(101, at(0))
    wait = bucket.wait(250, at(0))
    assert wait == pytest.approx(15)
    assert not bucket.fits(250, at(wait - 0.2))
    assert bucket.fits(250, at(wait))
    assert bucket.remaining(at(1000)) == 600
    assert bucket.wait(601, at(1000)) == NEVER


def test_a_bucket_in_debt_repays_it_before_anything_fits() -> None:
    bucket = meter("tokens_per_minute", 60)
    bucket.take(60, at(0))
    bucket.end(60, 90, 0, at(0))  # it generated more than was estimated
    assert bucket.wait(1, at(0)) == pytest.approx(31)
    assert bucket.remaining(at(30)) == 0
    assert bucket.fits(1, at(31))


def test_a_bucket_never_holds_more_than_its_amount_and_reads_the_monotonic_clock() -> None:
    bucket = meter("requests_per_minute", 10)
    bucket.end(5, 0, 0, at(0))
    assert bucket.remaining(at(0)) == 10
    bucket.take(10, at(0))
    assert bucket.remaining(at(0, NOON + 10 * HOUR)) == 0
    assert bucket.remaining(at(-5)) == 0


def test_a_changed_bucket_keeps_what_is_used() -> None:
    bucket = meter("tokens_per_minute", 100)
    bucket.take(80, at(0))
    bucket.change(150, at(0))
    assert bucket.remaining(at(0)) == 70
    bucket.change(60, at(0))
    assert bucket.remaining(at(0)) == 0


def test_a_gauge_learns_how_long_requests_take() -> None:
    gauge = meter("concurrent_requests", 2)
    for second in range(0, 1000, 10):
        period = gauge.take(1, at(second))
        gauge.end(1, 0, period, at(second + 10))
    gauge.take(1, at(2000))
    gauge.take(1, at(2000))
    assert not gauge.fits(1, at(2000))
    assert gauge.wait(1, at(2000)) == pytest.approx(5, rel=0.1)
    assert gauge.wait(3, at(2000)) == NEVER


def test_a_window_begins_anew_at_midnight_utc_and_at_the_months_end() -> None:
    day, month = meter("tokens_per_day", 100), meter("money_per_month", 100)
    for window in (day, month):
        window.end(100, 100, window.take(100, at(0)), at(0))
        assert not window.fits(1, at(12 * HOUR - 1))
        assert window.wait(1, at(0)) == pytest.approx(12 * HOUR)
        assert window.fits(100, at(12 * HOUR))
        assert window.wait(101, at(0)) == NEVER
    assert (day.period, month.period) == (20261201, 202612)


def test_what_requests_in_flight_hold_may_come_back_soon() -> None:
    day = meter("tokens_per_day", 100)
    first, second = day.take(50, at(0)), day.take(40, at(0))
    assert day.wait(60, at(0)) == SOON
    day.end(50, 50, first, at(0))
    assert day.wait(60, at(0)) == pytest.approx(12 * HOUR)
    assert day.wait(50, at(0)) == SOON
    day.end(40, 10, second, at(0))
    assert day.fits(40, at(0))
    assert day.wait(41, at(0)) > SOON


def test_what_was_taken_before_midnight_is_settled_there() -> None:
    day = meter("tokens_per_day", 100)
    period = day.take(60, at(11 * HOUR))
    day.take(50, at(13 * HOUR))
    day.end(60, 10, period, at(13 * HOUR))
    assert day.remaining(at(13 * HOUR)) == 50


def test_a_clock_that_steps_back_opens_no_second_day() -> None:
    day = meter("tokens_per_day", 100)
    before = day.take(70, at(12 * HOUR - 1))
    day.take(90, at(12 * HOUR + 1))
    assert day.remaining(at(12 * HOUR - 2)) == 10, "a small step stays in the day"
    assert day.remaining(at(0)) == 30, "a large one returns to what was used of the earlier day"
    day.end(70, 20, before, at(0))
    assert day.remaining(at(0)) == 80
    assert day.remaining(at(13 * HOUR)) == 10
