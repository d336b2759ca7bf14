"""How many engines there should be, by tables; and the whole rule over a simulated step of load."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tidemill.cluster.scaling import (
    MAX_PATIENCE,
    ROLE_SIGNALS,
    Autoscaler,
    Decision,
    EngineFacts,
    Held,
    Objectives,
    State,
)

S, R, D = State.STARTING, State.READY, State.DRAINING


def _engines(states: list[State], **facts: Any) -> list[EngineFacts]:
    """Engines of these states; ready ones with these facts."""
    return [
        EngineFacts(name=f"e{i}", state=state, **(facts if state is R else {}))
        for i, state in enumerate(states)
    ]


def _decide(
    objectives: Objectives, engines: list[EngineFacts], held: Held | None = None
) -> Decision:
    return Autoscaler(objectives).decide(100.0, engines, held or Held())


SCALE = Objectives(min_engines=0, max_engines=8, target_wait=2.0)


@pytest.mark.parametrize(
    ("states", "facts", "held", "desired", "start"),
    [
        ([], {}, 0, 0, 0),
        ([], {}, 1, 1, 1),  # from zero, on the first request
        ([], {}, 500, 1, 1),
        ([S], {}, 500, 1, 0),  # it starts already
        ([R], {"wait": 0.5}, 0, 1, 0),
        ([R], {"wait": 2.1}, 0, 1, 0),  # within the tolerance
        ([R], {"wait": 4.0}, 0, 2, 1),
        ([R], {"wait": 60.0}, 0, 5, 4),  # no more than a burst before those are ready
        ([R, S, S, S, S], {"wait": 60.0}, 0, 5, 0),
        ([R] * 5, {"wait": 12.0}, 0, 8, 3),  # at most max_engines
        ([R, S], {"wait": 4.0}, 0, 2, 0),  # what starts is capacity
        ([R, R], {"running": 8, "slots": 8}, 0, 3, 1),  # full, though nobody waits yet
        ([R, R], {"running": 3, "slots": 8}, 0, 2, 0),
        ([R, R], {"running": 3, "slots": 8, "busy": 1.0}, 0, 3, 1),  # long prompts
        ([R, R], {"running": 3}, 0, 2, 0),  # of an unknown capacity
    ],
)
def test_scale_out(
    states: list[State], facts: dict[str, Any], held: int, desired: int, start: int
) -> None:
    decision = _decide(SCALE, _engines(states, **facts), Held(requests=held))
    assert (decision.desired, decision.start) == (desired, start), decision
    assert decision.drain == decision.restore == ()


@pytest.mark.parametrize(
    ("goal", "states", "desired"),
    [
        ({"min_engines": 2, "max_engines": 4}, [R], 2),
        ({"min_engines": 2, "max_engines": 4}, [R] * 6, 4),  # the bounds hold at once
        ({"min_engines": 3, "max_engines": 3}, [], 3),
        ({"min_engines": 0, "max_engines": 0}, [R], 0),
    ],
)
def test_bounds(goal: dict[str, int], states: list[State], desired: int) -> None:
    assert _decide(Objectives(**goal), _engines(states)).desired == desired


def test_held_work_that_can_be_predicted_asks_for_as_many_as_it_takes() -> None:
    assert _decide(SCALE, [], Held(requests=9, seconds=6.0)).start == 3
    by_requests = Objectives(min_engines=0, max_engines=8, target_running=4)
    assert _decide(by_requests, [], Held(requests=9)).start == 3


def test_engines_that_drain_stay_before_others_start() -> None:
    engines = [
        EngineFacts(name="a", wait=9.0),
        EngineFacts(name="b", state=D),
        EngineFacts(name="c", state=D, running=3),
    ]
    decision = _decide(Objectives(max_engines=2), engines)
    assert (decision.restore, decision.start) == (("c",), 0)
    decision = _decide(Objectives(max_engines=8), engines)
    assert (decision.restore, decision.start, decision.desired) == (("c", "b"), 2, 5)


def test_those_that_start_go_first_then_the_least_loaded_and_newest() -> None:
    engines = [
        EngineFacts(name="a", running=2),
        EngineFacts(name="b", running=1),
        EngineFacts(name="c", running=1),
        EngineFacts(name="d", state=S),
    ]
    assert _decide(Objectives(max_engines=1), engines).drain == ("d", "c", "b")


def test_goodput_adds_one_after_the_other() -> None:
    scaler = Autoscaler(Objectives(max_engines=4, goodput=0.95, cooldown=30.0))
    bad = {"goodput": 0.8, "running": 1, "slots": 64}
    assert scaler.decide(0.0, _engines([R], **bad)).start == 1
    assert scaler.decide(10.0, _engines([R, S], **bad)).desired == 2
    assert scaler.decide(20.0, _engines([R, R], **bad)).desired == 2  # the old ones still fail
    assert scaler.decide(30.0, _engines([R, R], **bad)).start == 1
    assert scaler.decide(90.0, _engines([R, R, R], **(bad | {"goodput": 0.95}))).desired == 3


def test_scale_in_follows_the_peak_of_a_whole_window() -> None:
    scaler = Autoscaler(Objectives(max_engines=8, stabilization=300.0, cooldown=30.0))
    engines = _engines([R] * 4, slots=10)

    def at(now: float, load: int) -> Decision:
        facts = [EngineFacts(name=e.name, slots=10, running=load) for e in engines]
        return scaler.decide(now, facts)

    assert at(0.0, 8).desired == 4
    assert [at(float(t), 2).desired for t in range(10, 300, 10)] == [4] * 29
    assert at(300.0, 2).desired == 4  # the peak is still in the window
    after = at(301.0, 2)  # 4 engines * 2 of 10, over 0.8: one engine, and room for hysteresis
    assert (after.desired, after.drain, after.reason) == (2, ("e3", "e2"), "scale-in")


def test_no_scale_in_that_would_have_to_be_undone_at_once() -> None:
    """Just under the capacity of fewer engines is not enough."""
    scaler = Autoscaler(Objectives(max_engines=8, stabilization=10.0, cooldown=0.0))
    facts = [EngineFacts(name=f"e{i}", slots=100, running=n) for i, n in enumerate((60, 60, 20))]
    decisions = [scaler.decide(float(t), facts) for t in range(30)]
    assert {one.desired for one in decisions} == {3}  # demand 1.75 of 2


def test_a_scale_in_that_is_undone_makes_the_next_ones_wait_longer() -> None:
    scaler = Autoscaler(Objectives(max_engines=2, stabilization=100.0, cooldown=0.0))
    waits, count, since = list[float](), 2, 0.0
    for now in range(8000):  # two engines are idle, one alone is too few
        wait = 0.0 if count == 2 else 50.0
        decision = scaler.decide(float(now), _engines([R] * count, wait=wait))
        if decision.desired < count:
            waits.append(now - since)
        elif decision.desired > count:
            since = float(now)
        count = decision.desired
    assert waits[:4] == pytest.approx([100, 200, 400, 800], rel=0.02)
    assert max(waits) == pytest.approx(100 * MAX_PATIENCE, rel=0.02)


def test_to_zero_after_a_time_without_requests_and_back_on_one() -> None:
    goal = Objectives(
        min_engines=0, max_engines=4, idle=60.0, stabilization=10.0, cooldown=5.0, target_running=4
    )
    scaler = Autoscaler(goal)
    one = _engines([R])
    assert scaler.decide(0.0, _engines([R], running=1)).desired == 1
    assert [scaler.decide(float(t), one).desired for t in range(1, 60)] == [1] * 59
    gone = scaler.decide(60.0, one)
    assert (gone.desired, gone.drain, gone.reason) == (0, ("e0",), "no request came")
    assert scaler.decide(61.0, []).desired == 0
    back = scaler.decide(62.0, [], Held(requests=1))
    assert (back.start, scaler.decide(63.0, _engines([S]), Held(requests=1)).start) == (1, 0)
    # That was no scale-in which had to be undone: the next idle time is as long.
    assert scaler.decide(123.0, one).desired == 0


def test_requests_between_two_decisions_keep_the_last_engine() -> None:
    goal = Objectives(min_engines=0, max_engines=1, idle=60.0)
    scaler = Autoscaler(goal)
    for now in range(0, 600, 30):
        assert scaler.decide(float(now), _engines([R], arrived=1)).desired == 1
    assert scaler.decide(660.0, _engines([R])).desired == 0


def test_a_new_owner_waits_for_a_whole_window_before_it_scales_in() -> None:
    goal = Objectives(min_engines=0, max_engines=8, stabilization=50.0, idle=80.0, cooldown=0.0)
    scaler = Autoscaler(goal)
    found = [scaler.decide(1000.0 + t, _engines([R] * 3)).desired for t in range(82)]
    assert (found[49], found[50], found[79], found[81]) == (3, 1, 1, 0)


@pytest.mark.parametrize(
    ("role", "facts", "desired"),
    [
        ("prefill", {"wait": 6.0, "goodput": 0.1}, 3),
        ("decode", {"wait": 6.0, "running": 1, "slots": 8}, 1),
        ("decode", {"running": 16, "slots": 8}, 3),
        ("decode", {"goodput": 0.1, "slots": 8}, 2),
    ],
)
def test_roles_are_scaled_by_their_own_signals(
    role: str, facts: dict[str, Any], desired: int
) -> None:
    goal = Objectives(max_engines=8, goodput=0.9, signals=ROLE_SIGNALS[role])
    assert _decide(goal, _engines([R], **facts)).desired == desired


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"min_engines": 2, "max_engines": 1}, "min_engines"),
        ({"min_engines": -1}, "min_engines"),
        ({"target_wait": 0.0}, "target_wait"),
        ({"target_wait": float("nan")}, "target_wait"),
        ({"target_running": 0.0}, "target_running"),
        ({"goodput": 95.0}, "goodput"),
        ({"idle": -1.0}, "idle"),
        ({"stabilization": float("inf")}, "stabilization"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Objectives(**wrong)


def test_a_step_of_load_from_zero_to_four_and_back() -> None:
    """Engines of 10 requests per second that take 20 s to start; 32 requests per second come for
    five minutes. What no engine takes is held."""
    goal = Objectives(
        min_engines=0, max_engines=6, target_wait=2.0, stabilization=60.0, idle=120.0, cooldown=10.0
    )
    scaler, capacity, start = Autoscaler(goal), 10.0, 20
    born = dict[str, int]()
    backlog, counts = 0.0, list[int]()
    for now in range(900):
        comes = 32.0 if 50 <= now < 350 else 0.0
        ready = [name for name, at in born.items() if now - at >= start]
        backlog += comes
        served = min(backlog, capacity * len(ready))
        backlog -= served
        wait = backlog / (capacity * len(ready)) if ready else 0.0
        share = served / (capacity * len(ready)) if ready else 0.0
        facts = [
            EngineFacts(
                name=name,
                state=R if name in ready else S,
                wait=wait,
                running=round(backlog + served) if name in ready else 0,
                busy=share,
            )
            for name in born
        ]
        held = Held(requests=round(backlog)) if not ready else Held()
        decision = scaler.decide(float(now), facts, held)
        for _ in range(decision.start):
            born[f"e{len(counts):04d}-{len(born)}"] = now
        for name in decision.drain:
            del born[name]
        counts.append(decision.desired)
    assert counts[40] == 0 and counts[51] == 1
    assert max(counts) == 6  # the backlog of the start is worked off
    assert 4 <= counts[349] <= 5  # 32 of 10 each at 0.8
    assert backlog == 0.0 and counts[899] == 0
    changes = [(a, b) for a, b in pairwise(counts) if a != b]
    assert len(changes) <= 8, changes  # it does not flap
