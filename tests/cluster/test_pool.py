"""What becomes of one pool of engines."""

from __future__ import annotations

from typing import Any

from tidemill.cluster.pool import FAILED_EXITS, FIRST_PAUSE, Actions, Engine, Pool
from tidemill.cluster.scaling import EngineFacts, Held, Objectives, State

NONE = Held()


def _engine(name: str, digest: str = "new", state: State = State.READY, **more: Any) -> Engine:
    facts = {key: more.pop(key) for key in ("wait", "running", "slots") if key in more}
    return Engine(facts=EngineFacts(name=name, state=state, **facts), digest=digest, **more)


def _pool(least: int, most: int) -> Pool:
    goal = Objectives(min_engines=least, max_engines=most, cooldown=0.0)
    return Pool(goal, "new", start_seconds=100.0, silent_seconds=30.0)


def _only(actions: Actions, **wanted: Any) -> None:
    default: dict[str, Any] = {"start": 0, "drain": (), "restore": (), "stop": ()}
    found = {key: getattr(actions, key) for key in default}
    assert found == default | wanted, actions


def test_as_many_as_there_should_be() -> None:
    pool = _pool(2, 3)
    _only(pool.plan(0.0, [], NONE), start=2)
    starting = [_engine(name, state=State.STARTING) for name in "ab"]
    _only(pool.plan(1.0, starting, NONE))
    _only(pool.plan(2.0, [_engine("a", wait=9.0), _engine("b")], NONE), start=1)


def test_those_that_start_are_stopped_and_others_drain() -> None:
    engines = [_engine("a"), _engine("b"), _engine("c", state=State.STARTING)]
    _only(_pool(1, 1).plan(0.0, engines, NONE), drain=("b",), stop=("c",))


def test_an_engine_that_never_gets_ready_is_replaced_after_longer_and_longer_pauses() -> None:
    pool, now, pauses = _pool(1, 1), 0.0, list[float]()
    for number in range(8):
        failed = _engine(
            f"e{number}", state=State.STARTING, exits=FAILED_EXITS, reason="exit code 2: no such"
        )
        _only(pool.plan(now, [failed], NONE), stop=(failed.name,))
        assert "no such" in pool.problem
        began = now
        while not pool.plan(now, [], NONE).start:
            now += 1.0
        pauses.append(now - began)
    assert pauses == [min(300.0, FIRST_PAUSE * 2**n) for n in range(8)]
    _only(pool.plan(now, [_engine("good")], NONE))
    assert pool.problem == ""


def test_late_is_who_had_a_place() -> None:
    pool = _pool(1, 1)
    pending = _engine("a", state=State.STARTING, pending=True, since=0.0)
    _only(pool.plan(1000.0, [pending], NONE))
    late = _engine("a", state=State.STARTING, since=0.0)
    _only(pool.plan(1001.0, [late], NONE), stop=("a",))


def test_an_engine_that_is_silent_is_replaced() -> None:
    pool = _pool(1, 1)
    _only(pool.plan(0.0, [_engine("a", silent=29.0)], NONE))
    _only(pool.plan(2.0, [_engine("a", silent=31.0)], NONE), stop=("a",), start=1)


def test_engines_of_another_digest_are_replaced_one_after_the_other() -> None:
    pool = _pool(2, 2)
    old = [_engine("a", "old", running=5), _engine("b", "old", running=1)]
    _only(pool.plan(0.0, old, NONE), start=1)
    _only(pool.plan(1.0, [*old, _engine("c", state=State.STARTING)], NONE))
    _only(pool.plan(2.0, [*old, _engine("c")], NONE), drain=("b",))
    left = [old[0], _engine("b", "old", State.DRAINING), _engine("c")]
    _only(pool.plan(3.0, left, NONE))  # its place may be needed
    _only(pool.plan(3.5, [left[0], left[2]], NONE), start=1)
    left = [old[0], _engine("c"), _engine("d")]
    _only(pool.plan(4.0, left, NONE), drain=("a",))
    _only(pool.plan(5.0, [_engine("c"), _engine("d")], NONE))


def test_that_takes_no_capacity_where_more_engines_may_be() -> None:
    """The new one is there instead of an old one, not beside it."""
    pool = _pool(1, 8)
    old = [_engine("a", "old"), _engine("b", "old")]
    _only(pool.plan(0.0, old, NONE), start=1)
    _only(pool.plan(1.0, [*old, _engine("c")], NONE), drain=("a",))
    _only(pool.plan(2.0, [old[1], _engine("c")], NONE), start=1)


def test_load_while_engines_are_replaced_starts_more_of_the_new_ones() -> None:
    pool = _pool(1, 4)
    old = [_engine("a", "old", wait=8.0)]
    _only(pool.plan(0.0, old, NONE), start=3)
    coming = [_engine(name, state=State.STARTING) for name in "bcd"]
    _only(pool.plan(1.0, [*old, *coming], NONE))
    ready = [_engine(name, wait=2.0) for name in "bcde"]
    _only(pool.plan(2.0, [*old, *ready[:3]], NONE), start=1)
    _only(pool.plan(3.0, [*old, *ready], NONE), drain=("a",))


def test_old_ones_that_start_are_not_waited_for() -> None:
    engines = [_engine("a", "old", State.STARTING), _engine("b", "new")]
    _only(_pool(1, 1).plan(0.0, engines, NONE), stop=("a",))


def test_an_old_engine_that_drains_is_not_brought_back() -> None:
    engines = [_engine("a", "new", wait=9.0), _engine("b", "old", State.DRAINING)]
    _only(_pool(1, 2).plan(0.0, engines, NONE), start=1)
    engines = [_engine("a", "new", wait=9.0), _engine("b", "new", State.DRAINING)]
    _only(_pool(1, 2).plan(0.0, engines, NONE), restore=("b",))
