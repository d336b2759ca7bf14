"""Profiler: where the engine's time goes, while a client wants to know; see `contract.profile`.

All of it runs in the engine's thread, but the measurement of what the machine can do. While nobody
asks, the engine has no profiler.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.base.log import get_logger, summary
from tidemill.contract.plan import StepPlan, StepResult
from tidemill.contract.profile import EngineProfile, MachineRates
from tidemill.contract.request import RequestError
from tidemill.contract.wire import EndProfile, Profiled, StartProfile
from tidemill.executor.base import Executor, PlanHandle

_log = get_logger(__name__)

Answer = Callable[[Profiled], None]


class _Times:
    """What the engine's thread did, in seconds."""

    def __init__(self) -> None:
        self.waiting = self.submitting = self.idle = 0.0
        self.steps = 0
        self.drafting: dict[str, float] = {}  # by drafter


class _TimedHandle:
    """A submitted plan whose waiting is timed."""

    def __init__(self, handle: PlanHandle, times: _Times) -> None:
        self._handle = handle
        self._times = times

    def set_mask(self, row: int, draft: int, bits: Any) -> None:
        self._handle.set_mask(row, draft, bits)

    def done(self, seconds: float = 0.0) -> bool:
        begun = monotonic()
        done = self._handle.done(seconds)
        self._times.waiting += monotonic() - begun
        return done

    def result(self) -> StepResult:
        begun, times = monotonic(), self._times
        try:
            result = self._handle.result()
        finally:
            times.waiting += monotonic() - begun
            times.steps += 1
        for one in result.drafting:
            times.drafting[one.drafter] = times.drafting.get(one.drafter, 0.0) + one.seconds
        return result


class _TimedExecutor:
    """An executor whose submissions are timed; everything else is the executor's."""

    def __init__(self, executor: Executor, times: _Times) -> None:
        self._executor = executor
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def submit(self, plan: StepPlan) -> PlanHandle:
        begun = monotonic()
        try:
            return _TimedHandle(self._executor.submit(plan), self._times)
        finally:
            self._times.submitting += monotonic() - begun


class Profiler:
    """Takes one profile at a time.

    Args:
        executor: of the engine.
        use: makes the engine run its steps on another executor.
        busy: whether it has steps to run.
        post: runs a call in the engine's thread.
    """

    def __init__(
        self,
        executor: Executor,
        use: Callable[[Executor], None],
        busy: Callable[[], bool],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._executor = executor
        self._use = use
        self._busy = busy
        self._post = post
        self._taken: tuple[int, int] | None = None  # client and nonce of the profile being taken
        self._rates: MachineRates | None = None
        self._times: _Times | None = None  # while steps are counted
        self._begun = self._thread_cpu = self._process_cpu = 0.0

    def start(self, client: int, message: StartProfile, answer: Answer) -> None:
        """Begin a client's profile; it is told when the profile has begun."""
        problem = None
        if self._taken is not None:
            problem = ErrorKind.OVERLOADED, "a profile of this model is being taken; one at a time"
        elif self._executor.unloaded_bytes():  # a step may be waiting for them
            problem = ErrorKind.UNAVAILABLE, "the weights are still being loaded"
        if problem is not None:
            answer(Profiled(message.nonce, error=RequestError(*problem, None, True)))
            return
        self._taken = taken = client, message.nonce

        def begin() -> None:
            if self._taken == taken:  # else it was ended
                answer(self._begin(message))

        if not message.rates or self._rates is not None:
            begin()
            return

        def measure() -> None:
            try:
                found = self._executor.machine_rates()
            except Exception as error:  # the profile is worth having without
                _log.warning("the machine's rates could not be measured: %s", summary(error))
                found = None

            def measured() -> None:
                if found is not None:
                    operations, busy = found.operations, was_busy or self._busy()
                    self._rates = MachineRates(
                        read_bandwidth=found.read_bandwidth, operations=operations, busy=busy
                    )
                begin()

            self._post(measured)

        was_busy = self._busy()
        threading.Thread(target=measure, name="tidemill-rates", daemon=True).start()

    def end(self, client: int, message: EndProfile, answer: Answer) -> None:
        """End the client's profile and tell it what was found."""
        if self._taken != (client, message.begun) or self._times is None:
            if self._taken == (client, message.begun):
                self._taken = None
            told = RequestError(ErrorKind.INTERNAL, "no profile is being taken", None, False)
            answer(Profiled(message.nonce, error=told))
            return
        profile = self._end()
        if self._rates is not None and self._rates.busy:
            self._rates = None  # the next profile may find the machine idle
        answer(Profiled(message.nonce, profile))

    def leave(self, client: int) -> None:
        """A client has gone: nobody wants its profile."""
        if self._taken is not None and self._taken[0] == client:
            if self._times is not None:
                self._end()
            self._taken = None

    def idled(self, seconds: float) -> None:
        """The engine has slept so long for want of work, until now."""
        if self._times is not None:
            self._times.idle += min(seconds, monotonic() - self._begun)

    def _begin(self, message: StartProfile) -> Profiled:
        try:
            self._executor.start_profile(message.events)
        except TidemillError as error:
            self._taken = None
            told = RequestError(error.kind, error.message, error.param, error.retryable)
            return Profiled(message.nonce, error=told)
        self._times = _Times()
        self._use(cast("Executor", _TimedExecutor(self._executor, self._times)))
        self._begun = monotonic()
        self._thread_cpu, self._process_cpu = time.thread_time(), time.process_time()
        return Profiled(message.nonce)

    def _end(self) -> EngineProfile:
        times, self._times, self._taken = self._times, None, None
        assert times is not None
        thread_cpu, process_cpu = time.thread_time(), time.process_time()
        seconds = monotonic() - self._begun
        self._use(self._executor)
        return EngineProfile(
            seconds=seconds,
            steps=times.steps,
            counters=self._executor.end_profile(),
            idle_seconds=times.idle,
            waiting_seconds=times.waiting,
            submitting_seconds=times.submitting,
            thread_cpu_seconds=thread_cpu - self._thread_cpu,
            process_cpu_seconds=process_cpu - self._process_cpu,
            rates=self._rates,
            drafting=times.drafting,
        )
