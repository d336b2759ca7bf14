"""A run of decoding steps leaves the scheduler where planning and committing each would."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.simulated_costs import costs

from tidemill.contract.plan import RowResult, StepPlan, StepResult, StepTimings
from tidemill.contract.request import EngineRequest
from tidemill.contract.sampling import SamplingParams
from tidemill.sched.cost import Load
from tidemill.simulate.engine import scheduler_of

SECONDS = [0.010 + 0.001 * (step % 5) for step in range(200)]


def token(seq_id: int, position: int) -> int:
    return 1000 * seq_id + position


class Driver:
    """A scheduler, and its plan in flight."""

    def __init__(self, **sizes: Any) -> None:
        known = {"block_size": 16, "num_blocks": 256, **sizes}
        self.scheduler = scheduler_of(costs(**known).engine, lambda: 1.0)
        self.plan: StepPlan | None = None

    def commit(self, seconds: float) -> int:
        """End the step in flight; returns its outputs."""
        plan, self.plan = self.plan, None
        assert plan is not None
        rows = tuple(
            RowResult(
                seq_id=row.seq_id,
                token_ids=(token(row.seq_id, row.start),) if row.sample else (),
            )
            for row in plan.rows
        )
        timings = StepTimings(0.0, seconds, 0.0, seconds)
        result = StepResult(step_id=plan.step_id, rows=rows, timings=timings)
        return len(self.scheduler.commit(plan, result))

    def launch(self) -> None:
        """Plan the next step."""
        self.plan = self.scheduler.plan()

    def state(self) -> list[Any]:
        """All that further steps depend on."""
        scheduler = self.scheduler
        scheduler.check()
        sequences = [
            (s.tokens, s.planned, s.computed, s.pending, s.published, s.charged, s.last_row,
             s.keys, None if s.lease is None else s.lease.tables)
            for s in scheduler.sequences()
        ]  # fmt: skip
        bounds = [scheduler.cost.bound(load) for load in (Load(3, 200, 200), Load(512, 9e4, 512))]
        rows = None if self.plan is None else [(r.seq_id, r.start) for r in self.plan.rows]
        return [sequences, scheduler.stats(), bounds, scheduler.overlap_seconds, rows]


def request(number: int, output: int) -> EngineRequest:
    prompt = tuple(range(5000 * number, 5000 * number + 30 + number))
    sampling = SamplingParams(max_tokens=output, seed=0, temperature=0.0)
    return EngineRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling)


def made(requests: int = 3, *, output: int = 100, **sizes: Any) -> Driver:
    """Requests that all decode, with a step in flight."""
    driver = Driver(**sizes)
    for number in range(requests):
        driver.scheduler.submit(request(number, output + 7 * number))
    for _ in range(9):
        driver.launch()
        driver.commit(0.01)
    driver.launch()
    return driver


@pytest.mark.parametrize("count", [1, 2, 17, 60])
def test_it_is_as_many_steps(count: int) -> None:
    fast, slow = made(), made()
    run = fast.scheduler.decode_run()
    assert run is not None and run.steps >= count
    predicted = [fast.scheduler.overlap_seconds or 0.0]
    for number in range(count):
        assert slow.commit(SECONDS[number]) == 3
        slow.launch()
        predicted.append(slow.scheduler.overlap_seconds or 0.0)
        assert run.load(number + 1).reach == sum(r.start + r.count for r in slow.plan.rows)  # type: ignore[union-attr]
    fast.plan = fast.scheduler.follow(run, predicted, SECONDS[:count], token)
    assert fast.state() == slow.state()
    while slow.plan is not None:  # both go on alike, to the end
        for driver in (fast, slow):
            driver.commit(0.01)
            driver.launch()
        assert fast.state() == slow.state()
    assert not fast.scheduler.has_work and fast.scheduler.memory.num_used == 0


def test_there_is_none_where_something_else_may_happen() -> None:
    assert made().scheduler.decode_run() is not None
    assert made(output=10).scheduler.decode_run() is None  # a stream ends soon
    waiting = made()
    waiting.scheduler.submit(request(9, 5))
    assert waiting.scheduler.decode_run() is None
    # Blocks do not suffice for all that the run would take.
    assert made(num_blocks=10, max_model_len=150).scheduler.decode_run() is None
    assert made(recurrent=True, snapshots=4).scheduler.decode_run() is None
