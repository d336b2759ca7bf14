"""The rollout's states: what it waits for, what ends it, what survives a restart."""

from __future__ import annotations

import random

import pytest
from rollouts.simulation import Clock

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.server.host.rollout.machine import Event, EventKind, Phase, Rollout
from tidemill.server.host.rollout.observation import Observation
from tidemill.server.host.rollout.traffic import Bounds, Canary, Step

ERRORS_ALONE = Bounds(errors=0.02, ttft="off", itl="off", shorter="off", longer="off")
RULE = Canary(
    stable="1",
    canary="2",
    steps=(Step(percent=20, observations=10), 50),
    observations=20,
    seconds=60,
    bounds=ERRORS_ALONE,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def begin(clock: Clock, rule: Canary = RULE) -> Rollout:
    return Rollout.start("chat", rule, monotonic=clock, wall=lambda: clock() + 1e9)


class Traffic:
    """Requests as they come; the canary fails as often as is said."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self.rng = random.Random(5)
        self.sent = 0

    def send(self, count: int, *, failing: float = 0.0, users: int = 10**9) -> list[Event]:
        events = []
        for _ in range(count):
            self.sent += 1
            choice = self.rollout.route(f"request {self.sent % users}")
            failed = choice.version == "2" and self.rng.random() < failing
            event = self.rollout.observe(
                Observation(
                    version=choice.version,
                    step=choice.step,
                    unit=choice.unit,
                    error=ErrorKind.INTERNAL if failed else None,
                )
            )
            events += [event] if event else []
        return events


def test_a_step_takes_both_its_requests_and_its_time(clock: Clock) -> None:
    rollout = begin(clock)
    traffic = Traffic(rollout)
    assert traffic.send(200) == []
    assert rollout.waiting_for() == ["0 of 60 s"]
    clock.now += 60
    event = rollout.tick()
    assert event is not None and event.kind is EventKind.ADVANCED
    assert (event.percent_before, event.percent_after) == (20, 50)
    assert event.at == 1e9 + 60 and event.metrics
    assert rollout.state.comparison.length == 4, "blocks of a share of 50 %"
    clock.now += 60
    assert rollout.tick() is None
    assert rollout.waiting_for()[0] == "not yet enough: 0 of 20 requests"


def test_a_good_version_is_promoted_when_the_evidence_suffices_and_not_before(
    clock: Clock,
) -> None:
    rollout = begin(clock)
    traffic = Traffic(rollout)
    clock.now += 60
    traffic.send(100)
    clock.now += 60
    events = traffic.send(100)
    assert events == [] and rollout.percent == 50
    assert rollout.waiting_for() == ["not yet enough evidence that errors is within its limits"]
    [event] = traffic.send(3000)
    assert event.kind is EventKind.PROMOTED and event.reason == "within the limits: errors"
    assert rollout.percent == 100
    assert {rollout.route(str(i)).version for i in range(50)} == {"2"}


def test_evidence_rolls_back_at_once_in_the_first_step(clock: Clock) -> None:
    rollout = begin(clock)
    [event] = Traffic(rollout).send(400, failing=1.0)
    assert event.kind is EventKind.ROLLED_BACK and event.percent_before == 20
    assert event.reason.startswith("errors is worse: +100.00 points (above ")
    assert event.reason.endswith("limit +2.00 points")
    assert rollout.state.comparison.arms[1].requests < 30
    assert rollout.percent == 0
    assert {rollout.route(str(i)).version for i in range(50)} == {"1"}


def test_an_estimate_beyond_the_limit_holds_the_step(clock: Clock) -> None:
    rollout = begin(clock)
    traffic = Traffic(rollout)
    traffic.send(100, failing=0.15)
    clock.now += 60
    assert rollout.tick() is None
    assert rollout.waiting_for() == ["the estimate of errors is beyond its limit"]
    assert traffic.send(3000)[0].kind is EventKind.ADVANCED


def test_requests_of_an_earlier_step_are_counted_and_not_compared(clock: Clock) -> None:
    rollout = begin(clock)
    late = [rollout.route(f"late {i}") for i in range(100)]
    Traffic(rollout).send(200)
    clock.now += 60
    assert rollout.tick() is not None
    blocks = rollout.state.comparison.view("errors").blocks
    for choice in late:
        rollout.observe(
            Observation(version=choice.version, step=choice.step, error=ErrorKind.INTERNAL)
        )
    assert rollout.state.step_observations == 0
    assert rollout.state.comparison.view("errors").blocks == blocks
    assert rollout.state.comparison.arms[1].failures > 5


def test_other_versions_and_ended_rollouts_take_no_notice(clock: Clock) -> None:
    rollout = begin(clock)
    assert rollout.observe(Observation(version="3", step=0)) is None
    rollout.abort("no longer wanted")
    rollout.observe(Observation(version="1", step=0))
    assert [arm.requests for arm in rollout.state.comparison.arms] == [0, 0]
    assert rollout.tick() is None and rollout.waiting_for() == []


def test_a_person_may_promote_or_abort_once(clock: Clock) -> None:
    promoted, aborted = begin(clock), begin(clock)
    assert promoted.promote().percent_after == 100
    assert aborted.abort("changed our minds").reason == "changed our minds"
    assert (promoted.state.phase, aborted.state.phase) == (Phase.PROMOTED, Phase.ABORTED)
    for act in (promoted.abort, promoted.promote, aborted.promote):
        with pytest.raises(TidemillError, match="has ended") as caught:
            act()
        assert caught.value.kind is ErrorKind.BAD_REQUEST


def test_a_sticky_canary_waits_for_enough_users(clock: Clock) -> None:
    rule = Canary(
        stable="1",
        canary="2",
        steps=(50,),
        observations=1,
        seconds=0,
        bounds=ERRORS_ALONE,
        sticky="user",
        min_units=40,
    )
    rollout = begin(clock, rule)
    assert Traffic(rollout).send(4000, users=20) == []
    [waits] = rollout.waiting_for()
    assert waits.startswith("not yet enough: ") and waits.endswith(" of 40 users")
    assert Traffic(rollout).send(400, users=200)[0].kind is EventKind.PROMOTED


def test_without_any_evidence_nothing_is_promoted(clock: Clock) -> None:
    rule = Canary(
        stable="1",
        canary="2",
        steps=(50,),
        observations=1,
        seconds=0,
        bounds=Bounds(errors="off"),
    )
    rollout = begin(clock, rule)
    assert Traffic(rollout).send(500) == []
    assert rollout.waiting_for() == ["no metric with a limit has data"]


def test_an_undecided_rollout_ends_when_its_time_is_over(clock: Clock) -> None:
    rollout = begin(clock, Canary(stable="1", canary="2", bounds=ERRORS_ALONE, max_seconds=1000.0))
    clock.now += 999
    assert rollout.tick() is None
    clock.now += 1
    event = rollout.tick()
    assert event is not None and event.kind is EventKind.ROLLED_BACK
    assert event.reason.startswith("undecided after 1000 s: not yet enough: 0 of 100 requests")


def test_a_restart_goes_on_where_it_was_without_the_time_between(clock: Clock) -> None:
    rollout = begin(clock)
    traffic = Traffic(rollout)
    traffic.send(203, failing=0.05)
    clock.now += 59
    saved = rollout.save()
    clock.now += 10_000
    again = Rollout.restore(saved, monotonic=clock, wall=clock)
    assert again.state == Rollout.restore(again.save(), monotonic=clock, wall=clock).state
    assert again.state.step_seconds == 59 and again.tick() is None
    assert again.route("a") == rollout.route("a")
    # Both see the same from here on, to the last digit.
    for traffic in (Traffic(again), Traffic(rollout)):
        traffic.send(100, failing=0.05)
    assert again.state.comparison == rollout.state.comparison


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff"])
def test_a_state_that_cannot_be_read_says_so(data: bytes) -> None:
    with pytest.raises(TidemillError, match="start the rollout again") as caught:
        Rollout.restore(data)
    assert caught.value.kind is ErrorKind.CONFIG


def test_a_state_whose_step_is_none_of_its_plan_says_so(clock: Clock) -> None:
    rollout = begin(clock)
    rollout.state.step = 7
    with pytest.raises(TidemillError, match="step"):
        Rollout.restore(rollout.save())


def test_state_stays_small(clock: Clock) -> None:
    rollout = begin(clock, Canary(stable="1", canary="2", observations=10**6))
    rng = random.Random(6)
    for i in range(6000):
        choice = rollout.route(str(i))
        rollout.observe(
            Observation(
                version=choice.version,
                step=choice.step,
                unit=choice.unit,
                ttft_s=rng.lognormvariate(0, 3),
                itl_mean_s=rng.lognormvariate(0, 3),
                itl_p95_s=rng.lognormvariate(0, 3),
                output_tokens=int(rng.lognormvariate(5, 2)),
                computed_prompt_tokens=int(rng.lognormvariate(6, 3)),
            )
        )
    assert len(rollout.save()) < 80_000
