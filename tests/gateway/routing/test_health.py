"""When a target may be asked."""

from __future__ import annotations

from tidemill.gateway.routing.health import (
    FIRST_SECONDS,
    MAX_BUSY_SECONDS,
    MAX_SECONDS,
    Health,
    State,
    usable,
)


def test_a_hiccup_among_many_answers_opens_nothing() -> None:
    health = Health()
    for _ in range(50):
        health.succeeded()
    assert not any(health.failed(0.0, "reset") for _ in range(3))
    assert health.takes(0.0)
    health.succeeded()
    assert not any(health.failed(0.0, "reset") for _ in range(3))


def test_failures_in_a_row_open_it_and_one_answer_closes_it() -> None:
    health = Health()
    assert [health.failed(10.0, "reset") for _ in range(6)] == [*[False] * 5, True]
    assert health.state(10.1) is State.OPEN and not health.takes(10.1)
    later = 10.0 + FIRST_SECONDS
    assert health.state(later) is State.HALF_OPEN and health.takes(later)
    health.begin(later)
    assert not health.takes(later)  # one at a time
    health.succeeded()
    assert health.state(later) is State.CLOSED and health.takes(later)


def test_nothing_listens() -> None:
    health = Health()
    assert health.failed(0.0, "refused", down=True)
    now, waits = 0.0, []
    for _ in range(8):
        assert health.opened is not None
        waits.append(health.opened - now)
        now = health.opened
        health.begin(now)
        assert not health.failed(now, "refused", down=True)
    assert waits[:3] == [1.0, 2.0, 4.0] and waits[-1] == MAX_SECONDS


def test_late_failures_of_requests_begun_before_do_not_lengthen_the_wait() -> None:
    health = Health()
    health.failed(0.0, "refused", down=True)
    before = health.opened
    for _ in range(100):
        health.failed(0.5, "reset")
    assert health.opened == before


def test_a_try_whose_client_leaves_is_no_outcome() -> None:
    health = Health()
    health.failed(0.0, "refused", down=True)
    health.begin(2.0)
    health.abandoned()
    assert health.takes(2.0)


def test_busy_is_well() -> None:
    health = Health()
    health.busy(5.0, 1e9)
    assert health.takes(5.0) and health.busy_until == 5.0 + MAX_BUSY_SECONDS


def test_a_model_is_not_left_without_a_target() -> None:
    first, second = Health(), Health()
    assert usable([first, second], lambda h: h, 0.0) == [first, second]
    second.failed(0.0, "refused", down=True)
    assert usable([first, second], lambda h: h, 0.5) == [first]
    first.failed(0.2, "refused", down=True)
    assert usable([first, second], lambda h: h, 0.5) == [second]
    second.begin(0.5)
    assert usable([first, second], lambda h: h, 0.5) == []
    assert usable([], lambda h: h, 0.5) == []
