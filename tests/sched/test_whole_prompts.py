"""A model that reads in both directions gets each prompt in one step."""

from __future__ import annotations

import msgspec
import pytest
from helpers.drive import request

from tidemill.contract.plan import RowResult, StepPlan, StepResult, StepTimings
from tidemill.contract.request import EngineRequest, Pooling
from tidemill.memory.lease import KVMemory
from tidemill.sched.policy import Limits
from tidemill.sched.scheduler import Scheduler


def scheduler(**limits: object) -> Scheduler:
    bounds = {"max_num_seqs": 8, "max_step_tokens": 32, "max_model_len": 100, **limits}
    made = Limits(whole_prompts=True, generates=False, **bounds)  # type: ignore[arg-type]
    return Scheduler(KVMemory((64,), 4), made, clock=lambda: 0.0)


def pooled(name: str, length: int, tenant: str = "") -> EngineRequest:
    one = request(name, [5] * length, 1, tenant=tenant)
    return msgspec.structs.replace(one, pooling=Pooling("mean"))


def step(made: Scheduler, seconds: float) -> StepPlan:
    plan = made.plan()
    assert plan is not None
    rows = tuple(RowResult(seq_id=row.seq_id, pooled=b"1234") for row in plan.rows)
    timings = StepTimings(0.0, seconds, 0.0, seconds)
    made.commit(plan, StepResult(step_id=plan.step_id, rows=rows, timings=timings))
    return plan


def test_as_many_as_fit_and_each_whole() -> None:
    made = scheduler()
    for i, length in enumerate((20, 12, 13, 32)):
        made.submit(pooled(f"r{i}", length))
    rows = []
    while made.has_work:
        rows.append(sorted(row.count for row in step(made, 0.0).rows))
    assert sorted(count for counts in rows for count in counts) == [12, 13, 20, 32]
    assert all(sum(counts) <= 32 for counts in rows) and len(rows) < 4


def test_longer_than_a_step_is_rejected_with_both_numbers() -> None:
    made = scheduler()
    [emission] = made.submit(pooled("long", 33))
    error = emission.output.error
    assert error is not None and error.param == "input"
    assert "33" in error.message and "32" in error.message


@pytest.mark.parametrize(("seconds", "together"), [(0.01, 2), (0.9, 1)])
def test_a_second_one_only_within_the_time_of_a_step(seconds: float, together: int) -> None:
    """A second: what arrives meanwhile waits for the end of it."""
    made = scheduler()
    for i in range(4):
        made.submit(pooled(f"warm{i}", 16 - i))
        step(made, seconds)
    for i in range(2):
        made.submit(pooled(f"r{i}", 16))
    assert len(step(made, seconds).rows) == together
