"""Steps of a chosen length on a clock of the test's own, so that a step's timing can be checked.

The clock advances only while the engine waits for a step. Nothing depends on the machine's load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tidemill.base.errors import LoadCallback
from tidemill.contract.plan import StepPlan, StepResult, StepTimings
from tidemill.executor.base import Executor, PlanHandle


@dataclass
class Launch:
    """A plan that was submitted.

    Attributes:
        plan: what it computes.
        at: when it was submitted, in seconds of the test's clock.
        behind: the plan that was computing then, if any.
        since: when that one began to compute.
    """

    plan: StepPlan
    at: float
    behind: StepPlan | None = None
    since: float = 0.0


class PacedHandle:
    """A step that ends at a time of the test's clock; see `executor.base.PlanHandle`."""

    def __init__(self, pace: PacedExecutor, handle: PlanHandle, began: float, seconds: float):
        self._pace = pace
        self._handle = handle
        self._seconds = seconds
        self.began = began
        self.ends = began + seconds
        self.taken = False

    def set_mask(self, row: int, draft: int, bits: NDArray[np.uint8]) -> None:
        self._handle.set_mask(row, draft, bits)

    def done(self, seconds: float = 0.0) -> bool:
        """Waits on the test's clock."""
        self._pace.wait(min(seconds, self.ends - self._pace.now))
        return self._pace.now >= self.ends

    def result(self) -> StepResult:
        self._pace.wait(self.ends - self._pace.now)
        self.taken = True
        timings = StepTimings(0.0, self._seconds, 0.0, self._seconds)
        return msgspec.structs.replace(self._handle.result(), timings=timings)


@dataclass
class PacedExecutor:
    """Forwards to an executor; a step takes `seconds(plan)` and says so.

    Attributes:
        now: seconds of the test's clock, which the engine reads as well.
        launches: every plan submitted, in order.
        on_wait: called with the time to which the clock is about to advance.
    """

    executor: Executor
    seconds: Callable[[StepPlan], float]
    now: float = 0.0
    launches: list[Launch] = field(default_factory=list)
    on_wait: Callable[[float], None] = lambda until: None
    _handles: list[tuple[StepPlan, PacedHandle]] = field(default_factory=list)

    @property
    def behind(self) -> list[Launch]:
        """The plans submitted while another was computing."""
        return [launch for launch in self.launches if launch.behind is not None]

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        if seconds > 0.0:
            self.on_wait(self.now + seconds)
            self.now += seconds

    def submit(self, plan: StepPlan) -> PacedHandle:
        self._handles = [(p, h) for p, h in self._handles if not h.taken]
        launch = Launch(plan, self.now)
        began = self.now
        if self._handles:
            launch.behind, before = self._handles[-1]
            launch.since = before.began
            began = max(began, before.ends)
        self.launches.append(launch)
        handle = PacedHandle(self, self.executor.submit(plan), began, self.seconds(plan))
        self._handles.append((plan, handle))
        return handle

    def rollback(self, plan: StepPlan) -> None:
        self._handles = [(p, h) for p, h in self._handles if p is not plan]
        self.executor.rollback(plan)

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        return self.executor.when_loaded(on_loaded)

    def stop_loading(self) -> None:
        self.executor.stop_loading()

    def give_back(self, group: int, blocks: Sequence[int]) -> None:
        self.executor.give_back(group, blocks)

    def progress(self) -> int:
        return self.executor.progress()

    def close(self) -> None:
        self.executor.close()


class Pacing:
    """Wraps the executor of the next engine that is made; the engine reads its clock.

    Args:
        monkeypatch: undoes the engine's clock.
        seconds: of each step.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[StepPlan], float]
    ) -> None:
        self._seconds = seconds
        self.paced: PacedExecutor
        monkeypatch.setattr("tidemill.engine.core.monotonic", lambda: self.paced.now)

    def __call__(self, executor: Executor) -> PacedExecutor:
        self.paced = PacedExecutor(executor, self._seconds)
        return self.paced
