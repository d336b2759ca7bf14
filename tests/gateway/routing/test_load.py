"""What a target has still to compute."""

from __future__ import annotations

import pytest

from tidemill.gateway.routing.load import ANNOUNCED_SECONDS, Load


def test_a_reservation_counts_at_once_and_leaves_once() -> None:
    load = Load(rate=1000.0)
    one = load.reserve(0.0, 1000, 10)
    two = load.reserve(0.0, 500, 10)
    assert load.waiting(0.0) == pytest.approx(1.5)
    assert load.waiting(0.4) == pytest.approx(1.1)
    load.end(one, 0.4)
    load.end(one, 0.4)
    assert load.waiting(0.4) == pytest.approx(0.1) and load.active == 1
    load.first(two, 0.5)
    load.end(two, 0.6)
    assert (load.waiting(0.6), load.active, load.given) == (0.0, 0, 2)


def test_the_rate_is_learnt() -> None:
    load, now = Load(), 0.0
    for _ in range(40):
        reservation = load.reserve(now, 1000, 1)
        now += 0.25
        load.first(reservation, now)
        load.end(reservation, now)
    assert load.rate == pytest.approx(4000, rel=0.05)


def test_a_queue_does_not_make_a_target_slow() -> None:
    load = Load(rate=1000.0)
    for _ in range(20):
        together = [load.reserve(0.0, 100, 1) for _ in range(5)]
        for place, reservation in enumerate(together, 1):
            load.first(reservation, 0.1 * place)
            load.end(reservation, 0.1 * place)
    assert load.rate == pytest.approx(1000, rel=0.05)


def test_full_slots_are_waited_for() -> None:
    load = Load(slots=2, step=0.1)
    short, long = load.reserve(0.0, 1, 10), load.reserve(0.0, 1, 100)
    load.first(short, 0.0)
    load.first(long, 0.0)
    assert load.waiting(0.0) == pytest.approx(1.0)
    assert load.waiting(0.6) == pytest.approx(0.4)
    load.end(short, 1.0)
    assert load.waiting(1.0) == 0.0


def test_what_a_target_announces_is_believed_for_a_while() -> None:
    load = Load()
    load.announce(10.0, 5.0)
    assert load.waiting(11.0) == pytest.approx(4.0)
    assert load.waiting(10.0 + ANNOUNCED_SECONDS) == 0.0
