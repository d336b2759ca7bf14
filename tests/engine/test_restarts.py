"""When a dead engine is replaced, and when no more."""

from __future__ import annotations

from tidemill.engine.restarts import RestartPolicy


def test_restarts_come_later_and_later_and_end() -> None:
    policy = RestartPolicy(most=100, fruitless=6)
    delays = [policy.delay(0.0) for _ in range(7)]
    assert delays == [0.0, 0.0, 0.25, 0.5, 1.0, 2.0, None]
    policy.progressed()
    assert policy.delay(0.0) == 0.0


def test_restarts_are_bounded_per_time() -> None:
    policy = RestartPolicy(most=3, window=60.0)
    for now in (0.0, 10.0, 20.0):
        policy.progressed()
        assert policy.delay(now) == 0.0
    policy.progressed()
    assert policy.delay(61.0) == 0.0, "the first is long ago"
    assert policy.delay(62.0) is None
    assert "3 times within 1 minutes" in policy.bound


def test_deaths_far_apart_are_not_in_a_row() -> None:
    policy = RestartPolicy(window=60.0, fruitless=3)
    for hour in range(100):  # an idle engine that is killed every hour brings no token
        assert policy.delay(3600.0 * hour) == 0.0
        policy.started(3600.0 * hour + 1)


def test_starts_that_take_long_and_fail_are_in_a_row() -> None:
    policy = RestartPolicy(window=60.0, fruitless=3)
    policy.started(0.0)
    delays = [policy.delay(50.0 + 100.0 * i) for i in range(4)]
    assert delays == [0.0, 0.0, 0.25, None]


def test_deaths_with_a_culprit_do_not_count() -> None:
    policy = RestartPolicy(most=4, window=60.0, fruitless=4)
    for poison in range(20):
        for death in range(3):
            assert policy.delay(float(poison * 3 + death) / 10) is not None
        policy.explained(4)
    assert [policy.delay(7.0) is None for _ in range(5)] == [False] * 4 + [True]
