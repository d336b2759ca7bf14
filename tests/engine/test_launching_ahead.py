"""A step is launched before the one before it has ended where its plan does not depend on that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from helpers.drive import Machine, request
from helpers.real_engine import real_engine

from tidemill.contract.plan import StepPlan
from tidemill.contract.request import EngineRequest
from tidemill.engine.core import EngineCore
from tidemill.engine.offline import InprocEngine
from tidemill.sched.constraint import Constraint
from tidemill.worker.runner import RunnerHandle


class Watched:
    """Notes, for every plan launched, what was launched before it and is not taken in yet."""

    def __init__(self, core: EngineCore) -> None:
        self.behind: list[tuple[StepPlan, StepPlan]] = []
        self.plans: list[StepPlan] = []
        submit = core._submit

        def watching(plan: StepPlan) -> object:
            self.plans.append(plan)
            if core._in_flight:
                self.behind.append((core._in_flight[-1][0], plan))
            return submit(plan)

        core._submit = watching  # type: ignore[method-assign,assignment]


@pytest.fixture(autouse=True)
def no_step_is_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model's steps are shorter than telling what the last one gave."""
    monkeypatch.setattr(RunnerHandle, "done", lambda self, seconds=0.0: False)


@pytest.fixture
def engine() -> Iterator[InprocEngine]:
    made = real_engine("native", depth=2)
    yield made
    made.close()


def streams(count: int, tokens: int) -> list[EngineRequest]:
    return [
        request(f"r{i}", [3 + i, 4, 8], max_tokens=tokens, ignore_eos=True) for i in range(count)
    ]


def tokens_of(engine: InprocEngine) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for output in engine.run(streams(8, 60)):
        found.setdefault(output.request_id, []).extend(output.token_ids)
    return found


def test_streams_are_launched_ahead_with_the_tokens_they_would_have_had(
    engine: InprocEngine,
) -> None:
    watched = Watched(engine._core)
    ahead = tokens_of(engine)
    assert len(watched.behind) > 20, "most of some 60 steps"
    for before, plan in watched.behind:
        assert all(row.count == 1 and row.sample for row in before.rows)
        assert all(row.input_from == before.step_id for row in plan.rows if row.start > 3)
    one = real_engine("native", depth=1)
    try:
        assert ahead == tokens_of(one)
    finally:
        one.close()


def test_a_prompt_is_waited_for(engine: InprocEngine) -> None:
    watched = Watched(engine._core)
    for _ in engine.run([request("p", list(range(3, 90)), max_tokens=20, ignore_eos=True)]):
        pass
    assert watched.behind
    assert all(row.count == 1 for before, _ in watched.behind for row in before.rows)


def test_what_the_next_plan_waits_for() -> None:
    machine = Machine(depth=2)
    scheduler = machine.scheduler

    def ahead(predicted: float = 0.5) -> float | None:
        [step] = scheduler._in_flight
        step.predicted = predicted
        return scheduler.overlap_seconds

    assert scheduler.overlap_seconds is None, "nothing is in flight"
    machine.submit(request("a", [1, 2, 3, 4], max_tokens=9, ignore_eos=True))
    machine.launch()
    assert ahead() is None, "a prompt's blocks are others' too, once it is computed"
    machine.land()
    machine.launch()
    assert ahead() == 0.5
    assert ahead(0.0) is None, "nothing was measured"
    [in_flight] = scheduler._in_flight[0].rows_in_flight
    in_flight.seq.constraint = cast(Constraint, object())
    assert ahead() is None, "its next mask depends on the token"
    in_flight.seq.constraint = None
    machine.launch()
    assert scheduler.overlap_seconds is None, "two are in flight"


def test_a_recurrent_models_steps_are_waited_for() -> None:
    """A step behind another would write over the state that the other began with, and which is
    needed when that one fails."""
    engine = real_engine("native", model="recurrent")
    watched = Watched(engine._core)
    try:
        tokens_of(engine)
    finally:
        engine.close()
    assert watched.plans and not watched.behind
