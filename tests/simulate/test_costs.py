"""Costs: files, and fits that find the costs that steps were made with."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tidemill.base.errors import TidemillError
from tidemill.contract.plan import LayerRange, Row, RowResult, StepPlan, StepResult, StepTimings
from tidemill.simulate.costs import (
    Costs,
    EngineFacts,
    MachineFacts,
    StepSeconds,
    Work,
    file_name,
    newest_costs,
    read_costs,
    work_of,
    write_costs,
)
from tidemill.simulate.fit import Step, fit, fit_gaps
from tidemill.simulate.recording import StepRecorder

TRUE = StepSeconds(
    tokens=((1.0, 0.010), (8.0, 0.011), (64.0, 0.030), (512.0, 0.200)),
    projection=0.004, sample=0.0002, pair=2e-8, reach=4e-7,
)  # fmt: skip
MACHINE = MachineFacts(processor="two cores", cores=2)
ENGINE = EngineFacts(model="a/model", identity="abc")


def drawn_steps(noise: float = 0.0, count: int = 1500) -> list[Step]:
    """Decode steps of 1 to 32 rows, and prompts' chunks alone and beside them."""
    draws = random.Random(1)
    found = []
    for _ in range(count):
        rows = draws.choice((0, 1, 2, 4, 8, 16, 32))
        chunk = draws.choice((0, 0, 16, 64, 128, 256, 480)) if rows else draws.randrange(8, 512)
        context = draws.randrange(50, 1500)
        begun, last = draws.randrange(0, 1000), draws.random() < 0.3
        tokens = rows + chunk
        pairs = rows * context + chunk * begun + chunk * chunk / 2
        reach = rows * context + (begun + chunk if chunk else 0)
        work = Work(tokens, pairs, reach, rows + (last and chunk > 0), rows + (chunk > 0))
        found.append(Step(work, TRUE.of(work) * draws.lognormvariate(0, noise)))
    return found


def test_a_fit_finds_the_costs_that_steps_were_made_with() -> None:
    seconds, residuals, measured = fit(drawn_steps())
    assert residuals.error < 0.01 and residuals.steps == 1500
    for work in (Work(1, 500, 500, 1, 1), Work(16, 16e3, 16e3, 16, 16), Work(300, 2e5, 1e3, 0, 1)):
        assert seconds.of(work) == pytest.approx(TRUE.of(work), rel=0.03)
    assert measured.tokens <= 512 and measured.samples == 33


def test_noise_is_kept_as_quantiles_and_a_fit_stands_it() -> None:
    seconds, residuals, _ = fit(drawn_steps(noise=0.1))
    work = Work(8, 8000, 8000, 8, 8)
    assert seconds.of(work) == pytest.approx(TRUE.of(work), rel=0.05)
    ratios = residuals.ratios
    assert list(ratios) == sorted(ratios)
    assert ratios[len(ratios) // 2] == pytest.approx(1, abs=0.03)
    assert ratios[round(0.9 * (len(ratios) - 1))] == pytest.approx(1.137, abs=0.04)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(TidemillError, match="too few"):
        fit(drawn_steps(count=20))


def test_the_engines_own_time_is_a_line_by_rows() -> None:
    draws = random.Random(2)
    gaps = [
        (rows, 0.0003 + 2e-5 * rows + (0.004 if draws.random() < 0.1 else 0.0))
        for rows in (1, 4, 16, 32)
        for _ in range(50)
    ]
    step, row = fit_gaps(gaps)
    assert step == pytest.approx(0.0003, rel=0.02) and row == pytest.approx(2e-5, rel=0.02)
    assert fit_gaps([]) == (0.0, 0.0)


def test_files(tmp_path: Path) -> None:
    seconds, residuals, measured = fit(drawn_steps())
    costs = Costs(
        engine=ENGINE, machine=MACHINE, step=seconds, residuals=residuals, measured=measured,
        created="2026-11-27T04:00:00+00:00",
    )  # fmt: skip
    path = tmp_path / "costs" / file_name(MACHINE, ENGINE)
    assert "/" not in path.name
    write_costs(costs, path)
    assert read_costs(path) == costs
    write_costs(msgspec.structs.replace(costs, created="2026-11-26"), path.parent / "older.json")
    (path.parent / "broken.json").write_text("{")
    assert newest_costs(path.parent, "a/model") == path
    assert newest_costs(path.parent, "another") is None
    other = msgspec.structs.replace(ENGINE, quantization="q8_0")
    assert file_name(MACHINE, other) != path.name


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema": "tidemill.bench/1"}', None])
def test_what_is_no_file_of_costs_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "costs.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TidemillError) as caught:
        read_costs(path)
    assert caught.value.param == "costs" and str(path) in caught.value.message


def test_steps_beyond_the_measured_are_told() -> None:
    seconds, residuals, measured = fit(drawn_steps())
    costs = Costs(
        engine=ENGINE, machine=MACHINE, step=seconds, residuals=residuals, measured=measured
    )
    assert costs.beyond(Work(512, 1e4, 1e4, 8, 8)) is None
    assert "tokens 2,000" in (costs.beyond(Work(2000, 1e4, 1e4, 8, 8)) or "")
    assert "reach" in (costs.beyond(Work(8, 1e4, 1e7, 8, 8)) or "")


PLAN = StepPlan(
    step_id=0,
    rows=(
        Row(seq_id=1, start=99, count=1, sample=True, draft_token_ids=(5, 6)),
        Row(seq_id=2, start=0, count=64, layers=LayerRange(0, 7)),
    ),
)


def test_work_of_a_plan() -> None:
    work = work_of(PLAN, layers=28)
    assert work.tokens == 3 + 64 / 4 and work.samples == 3 and work.rows == 2
    assert work.reach == 102 + 64 / 4


class _Handle:
    def result(self) -> StepResult:
        rows = tuple(RowResult(seq_id=row.seq_id) for row in PLAN.rows)
        return StepResult(step_id=0, rows=rows, timings=StepTimings(0.0, 0.02, 0.001, 0.03))

    def done(self, seconds: float = 0.0) -> bool:
        return True


class _Executor:
    def submit(self, plan: StepPlan) -> _Handle:
        return _Handle()

    def progress(self) -> int:
        return 41


def test_a_recorder_keeps_steps_and_the_time_between_them() -> None:
    recorder = StepRecorder(_Executor(), 28)  # type: ignore[arg-type]
    assert recorder.progress() == 41
    first = recorder.submit(PLAN)
    assert first.done() and not recorder.steps
    first.result()
    second, third = recorder.submit(PLAN), recorder.submit(PLAN)
    assert [rows for rows, _ in recorder.gaps] == [2]  # the third was queued behind the second
    second.result()
    third.result()
    assert recorder.steps == [Step(work_of(PLAN, 28), pytest.approx(0.021))] * 3
