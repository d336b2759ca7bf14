"""A step is launched before the one before it has ended where its plan does not depend on that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import msgspec
import pytest
from helpers.drive import Machine, request
from helpers.paced import PacedExecutor, Pacing
from helpers.real_engine import real_core, real_engine

from tidemill.contract.plan import StepPlan
from tidemill.contract.program import Grammar, OutputProgram
from tidemill.contract.request import EngineRequest
from tidemill.engine.offline import InprocEngine

STEP = 0.1
LEARNING = 12
"""Steps after which the time of one is known well."""


def paced_engine(
    monkeypatch: pytest.MonkeyPatch,
    seconds: Callable[[StepPlan], float] = lambda plan: STEP,
    **options: str | int,
) -> tuple[InprocEngine, PacedExecutor]:
    pacing = Pacing(monkeypatch, seconds)
    made = real_engine("native", wrap=pacing, **options)  # type: ignore[arg-type]
    return made, pacing.paced


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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, paced = paced_engine(monkeypatch)
    with closing(engine):
        ahead = tokens_of(engine)
    assert len(paced.behind) > 40, "most of some 60 steps"
    for launch in paced.behind:
        before = launch.behind
        assert before is not None and all(row.count == 1 and row.sample for row in before.rows)
        assert all(row.input_from == before.step_id for row in launch.plan.rows if row.start > 3)
    one, alone = paced_engine(monkeypatch, depth=1)
    with closing(one):
        assert ahead == tokens_of(one)
    assert alone.launches and not alone.behind


def test_shortly_before_the_step_should_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sooner, and what arrives meanwhile would have to wait for one step more."""
    engine, paced = paced_engine(monkeypatch)
    with closing(engine):
        tokens_of(engine)
    waited = [launch.at - launch.since for launch in paced.behind][LEARNING:]
    assert len(waited) > 20
    assert all(0.85 * STEP < one < STEP for one in waited), waited


def test_time_between_steps_counts_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, paced = paced_engine(monkeypatch)
    with closing(engine):
        tokens_of(engine)
        paced.now += 1000.0  # nobody asks for anything
        tokens_of(engine)
        taken = engine.stats.step_seconds
    assert taken == pytest.approx(STEP * len(paced.launches), rel=0.05)


def test_what_arrives_while_a_step_computes_is_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    pacing = Pacing(monkeypatch, lambda plan: STEP)
    core = real_core("native", wrap=pacing)
    paced = pacing.paced
    arrived: list[StepPlan] = []

    def late(until: float) -> None:
        if not arrived and len(paced.launches) > 30 and until - paced.now > STEP / 2:
            arrived.append(paced.launches[-1].plan)
            core.submit(core.connect(lambda message: None), request("late", [9, 4], max_tokens=1))

    paced.on_wait = late
    with closing(InprocEngine(core)) as engine:
        for _ in engine.run(streams(2, 60)):
            pass
    [first] = [one for one in paced.launches if any(n.request_id == "late" for n in one.plan.new)]
    assert first.behind is arrived[0]


def test_a_step_that_ends_sooner_than_predicted_is_taken_in_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(plan: StepPlan) -> bool:
        return plan.step_id > LEARNING and plan.step_id % 9 == 0

    engine, paced = paced_engine(monkeypatch, lambda plan: STEP / 4 if short(plan) else STEP)
    with closing(engine):
        tokens_of(engine)
    assert sum(short(launch.plan) for launch in paced.launches) >= 5
    assert len(paced.behind) > 20
    assert not any(launch.behind and short(launch.behind) for launch in paced.behind)


def test_a_prompt_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, paced = paced_engine(monkeypatch)
    with closing(engine):
        tokens_of(engine)
        begun = len(paced.behind)
        for _ in engine.run([request("p", list(range(3, 90)), max_tokens=20, ignore_eos=True)]):
            pass
    assert len(paced.behind) > begun
    assert all(row.count == 1 for one in paced.behind if one.behind for row in one.behind.rows)


class Free:
    """A constraint under which every token is allowed."""

    masked = complete = repeats = False

    def accept(self, token_id: int) -> None:
        pass

    def forced(self) -> tuple[int, ...]:
        return ()


def test_what_the_next_plan_waits_for() -> None:
    machine = Machine(depth=2, max_num_seqs=1)
    machine.backend.cost = lambda inputs: 0.5
    scheduler = machine.scheduler
    assert scheduler.overlap_seconds is None, "nothing is in flight"
    machine.submit(request("a", [1, 2, 3, 4], max_tokens=20, ignore_eos=True))
    machine.launch()
    machine.land()
    machine.launch()
    assert scheduler.overlap_seconds is None, "too little was measured"
    for _ in range(10):
        machine.land()
        machine.launch()
    assert scheduler.overlap_seconds == pytest.approx(0.5, rel=0.1)
    machine.launch()
    assert scheduler.overlap_seconds is None, "two are in flight"
    machine.run()
    machine.submit(request("prompt", [5, 2, 3, 4], max_tokens=2, ignore_eos=True))
    machine.launch()
    assert scheduler.overlap_seconds is None, "a prompt's blocks are others' too, once computed"
    machine.run()

    program = OutputProgram((Grammar("regex", "a+"),))
    asked = request("b", [1, 2, 3, 4], max_tokens=9)
    machine.submit(msgspec.structs.replace(asked, program=program))
    machine.take(scheduler.release(0, "b", [Free()]))
    machine.launch()
    machine.land()
    machine.launch()
    assert scheduler.overlap_seconds is None, "its next mask depends on the token"
    machine.run()


def test_a_recurrent_models_steps_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step behind another would write over the state that the other began with, and which is
    needed when that one fails."""
    engine, paced = paced_engine(monkeypatch, model="recurrent")
    with closing(engine):
        tokens_of(engine)
    assert paced.launches and not paced.behind
