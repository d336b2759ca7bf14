"""StepRecorder: an executor that keeps the work and the time of every step, for `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.base.clock import monotonic
from tidemill.contract.plan import StepPlan, StepResult
from tidemill.simulate.costs import Work, work_of
from tidemill.simulate.fit import Step

if TYPE_CHECKING:
    from tidemill.executor.base import Executor, PlanHandle

LONGEST_GAP = 0.02
"""Seconds between two steps that are still the engine's own; longer ones are waits for work."""


class StepRecorder:
    """Forwards everything to an executor (`executor.base.Executor`).

    Args:
        executor: computes.
        layers: of the model, where rows may be cut by layers; else 0.

    Attributes:
        steps: the steps that have ended.
        gaps: of steps submitted while none was in flight: their rows, and the seconds since the
            step before had its result: what the engine's loop took.
    """

    def __init__(self, executor: Executor, layers: int = 0) -> None:
        self.steps: list[Step] = []
        self.gaps: list[tuple[int, float]] = []
        self._executor = executor
        self._layers = layers
        self._in_flight = 0
        self._ended: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def submit(self, plan: StepPlan) -> PlanHandle:
        """See Executor."""
        if self._ended is not None and not self._in_flight:
            gap = monotonic() - self._ended
            if gap < LONGEST_GAP:
                self.gaps.append((len(plan.rows), gap))
        work = work_of(plan, self._layers)
        handle = self._executor.submit(plan)
        self._in_flight += 1
        return _Recorded(handle, lambda result: self._end(work, result))

    def _end(self, work: Work, result: StepResult | None) -> None:
        self._in_flight -= 1
        self._ended = None
        if result is not None:
            self._ended = monotonic()
            self.steps.append(Step(work, result.timings.forward + result.timings.sampling))


class _Recorded:
    """A submitted plan whose end is recorded."""

    def __init__(self, handle: PlanHandle, ended: Callable[[StepResult | None], None]) -> None:
        self._handle = handle
        self._when_ended: Callable[[StepResult | None], None] | None = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def result(self) -> StepResult:
        """See PlanHandle."""
        result: StepResult | None = None
        try:
            result = self._handle.result()
            return result
        finally:
            if self._when_ended is not None:
                ended, self._when_ended = self._when_ended, None
                ended(result)
