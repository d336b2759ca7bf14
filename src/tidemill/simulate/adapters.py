"""SimulatedAdapters: the engine's own gate for adapters, with loads that take simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from tidemill.contract.request import AdapterUse, EngineRequest
from tidemill.contract.wire import AdapterInfo
from tidemill.engine.adapters import AdapterGate
from tidemill.executor.base import Executor
from tidemill.sched.scheduler import Scheduler
from tidemill.sched.sequence import Emission
from tidemill.simulate.timeline import Timeline

MOST_ADAPTERS = 1024
"""In memory at once, whatever they take."""

Command = Callable[[], list[Emission]]


class AdapterSizes(NamedTuple):
    """What adapters take.

    Attributes:
        nbytes: of each.
        memory: bytes that all may take; those used least recently leave first.
        bandwidth: bytes per second with which one is read and verified.
    """

    nbytes: int
    memory: int
    bandwidth: float

    def use(self, name: str) -> AdapterUse:
        """The adapter of a name."""
        return AdapterUse(name, "", digest=name, nbytes=self.nbytes)


class _Memory:
    """The part of an executor that holds adapters.

    Attributes:
        slots: bytes in each slot.
    """

    def __init__(self, sizes: AdapterSizes) -> None:
        self.slots: dict[int, int] = {}
        self._sizes = sizes

    def adapter_room(self) -> tuple[int, int]:
        """See Executor."""
        return self._sizes.memory, MOST_ADAPTERS

    def load_adapters(self, slot: int, uses: tuple[AdapterUse, ...]) -> AdapterInfo:
        """See Executor."""
        self.slots[slot] = sum(use.nbytes for use in uses)
        return AdapterInfo(digest=uses[0].digest, nbytes=self.slots[slot])

    def unload_adapters(self, slot: int) -> None:
        """See Executor."""
        self.slots.pop(slot, None)


class _Loader:
    """See `engine.adapters.Loader`; the gate loads one adapter at a time."""

    def __init__(self, timeline: Timeline, seconds: float) -> None:
        self._timeline = timeline
        self._seconds = seconds

    def submit(self, work: Callable[[], None]) -> None:
        """See Loader."""
        self._timeline.at(self._timeline.now + self._seconds, work)

    def close(self) -> None:
        """See Loader."""


class SimulatedAdapters:
    """Requests with adapters wait here until theirs are in memory.

    Args:
        timeline: its time.
        sizes: of the adapters.
        scheduler: is told what is loaded.
        post: runs a command of the engine.

    Attributes:
        slots: bytes in each slot.
    """

    def __init__(
        self,
        timeline: Timeline,
        sizes: AdapterSizes,
        scheduler: Scheduler,
        post: Callable[[Command], None],
    ) -> None:
        memory = _Memory(sizes)
        self.slots = memory.slots
        self._scheduler = scheduler
        self._granted: list[Emission] = []
        loader = _Loader(timeline, sizes.nbytes / sizes.bandwidth)

        def later(call: Callable[[], None]) -> None:
            post(lambda: self._after(call))

        self._gate = AdapterGate(cast("Executor", memory), later, loader)

    def _after(self, call: Callable[[], None]) -> list[Emission]:
        call()
        found, self._granted = self._granted, []
        return found

    def acquire(self, request: EngineRequest) -> list[Emission]:
        """Queue a request once its adapters are in memory."""
        name, scheduler = request.request_id, self._scheduler

        def granted(slot: int, error: object) -> None:
            self._granted += scheduler.adapters_loaded(0, name, slot, error)  # type: ignore[arg-type]

        def begin() -> None:
            self._gate.acquire(
                request.adapters, granted, lambda: scheduler.awaits_adapters(0, name)
            )

        return self._after(begin)

    def settle(self, last_step: int, oldest_step: int | None) -> list[Emission]:
        """Give back the adapters of ended requests, once no step in flight can name them.

        Args:
            last_step: the newest one launched.
            oldest_step: the oldest one in flight.
        """
        scheduler = self._scheduler
        for owner in scheduler.ended_with_adapters:
            if owner.adapter_slot:
                self._gate.release(owner.request.adapters, last_step)
        scheduler.ended_with_adapters.clear()
        return self._after(lambda: self._gate.settle(oldest_step))
