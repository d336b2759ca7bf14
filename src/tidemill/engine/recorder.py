"""The engine process's side of the flight log: the requests being computed, and a heartbeat."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import LoadCallback
from tidemill.contract.moves import BlockMoves, MoveReport, PeerLoad, Tier
from tidemill.contract.plan import BlockCopy, StepPlan, StepResult
from tidemill.contract.profile import MachineRates, StepCounters
from tidemill.contract.request import AdapterUse
from tidemill.contract.wire import AdapterInfo
from tidemill.engine.flightlog import FlightLog, request_key
from tidemill.executor.base import Executor, PlanHandle

if TYPE_CHECKING:
    from tidemill.transfer.link import Link
    from tidemill.transfer.serving import Prefills

BEAT_SECONDS = 0.2


class RecordedHandle:
    """A submitted plan whose end is recorded in the flight log."""

    def __init__(self, handle: PlanHandle, log: FlightLog, step: int) -> None:
        self._handle = handle
        self._log = log
        self._step = step

    def set_mask(self, row: int, draft: int, bits: NDArray[np.uint8]) -> None:
        """See PlanHandle."""
        self._handle.set_mask(row, draft, bits)

    def done(self, seconds: float = 0.0) -> bool:
        """See PlanHandle."""
        return self._handle.done(seconds)

    def result(self) -> StepResult:
        """See PlanHandle."""
        try:
            return self._handle.result()
        finally:
            self._log.leave(self._step)


class RecordingExecutor:
    """An executor that records in the flight log the requests that each step computes.

    Args:
        executor: the executor to forward to.
        log: the flight log.
    """

    def __init__(self, executor: Executor, log: FlightLog) -> None:
        self._executor = executor
        self._log = log
        self._keys: dict[int, int] = {}  # by sequence

    def submit(self, plan: StepPlan) -> PlanHandle:
        """See Executor."""
        for seq_id in plan.finished:
            self._keys.pop(seq_id, None)
        for new in plan.new:
            self._keys[new.seq_id] = request_key(new.request_id)
        keys = {self._keys.get(row.seq_id, 0) for row in plan.rows}
        self._log.enter(plan.step_id, keys - {0})
        try:
            return RecordedHandle(self._executor.submit(plan), self._log, plan.step_id)
        except BaseException:
            self._log.leave(plan.step_id)
            raise

    def rollback(self, plan: StepPlan) -> None:
        """See Executor."""
        self._executor.rollback(plan)

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """See Executor."""
        return self._executor.when_loaded(on_loaded)

    def stop_loading(self) -> None:
        """See Executor."""
        self._executor.stop_loading()

    def adapter_room(self) -> tuple[int, int]:
        """See Executor."""
        return self._executor.adapter_room()

    def load_adapters(self, slot: int, uses: tuple[AdapterUse, ...]) -> AdapterInfo:
        """See Executor."""
        return self._executor.load_adapters(slot, uses)

    def unload_adapters(self, slot: int) -> None:
        """See Executor."""
        self._executor.unload_adapters(slot)

    def move(self, moves: BlockMoves) -> None:
        """See Executor."""
        self._executor.move(moves)

    def report_moves(self, report: Callable[[MoveReport], None]) -> None:
        """See Executor."""
        self._executor.report_moves(report)

    def on_requests(self, take: Callable[[Link], None]) -> None:
        """See Executor."""
        self._executor.on_requests(take)

    def serve_prefills(self, prefills: Prefills) -> None:
        """See Executor."""
        self._executor.serve_prefills(prefills)

    def peer_loads(self) -> list[tuple[str, PeerLoad]]:
        """See Executor."""
        return self._executor.peer_loads()

    def announce(self, digest: bytes, there: bool) -> None:
        """See Executor."""
        self._executor.announce(digest, there)

    def tier_of(self, digest: bytes) -> Tier | None:
        """See Executor."""
        return self._executor.tier_of(digest)

    def give_back(self, group: int, blocks: Sequence[int]) -> None:
        """See Executor."""
        self._executor.give_back(group, blocks)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """See Executor."""
        self._executor.copy(copies)

    def limit_cache(self, blocks: int) -> None:
        """See Executor."""
        self._executor.limit_cache(blocks)

    def empty_cache(self) -> None:
        """See Executor."""
        self._executor.empty_cache()

    def release_weights(self) -> None:
        """See Executor."""
        self._executor.release_weights()

    def restore_weights(self) -> None:
        """See Executor."""
        self._executor.restore_weights()

    def unloaded_bytes(self) -> int:
        """See Executor."""
        return self._executor.unloaded_bytes()

    def start_profile(self, events: int) -> None:
        """See Executor."""
        self._executor.start_profile(events)

    def end_profile(self) -> StepCounters | None:
        """See Executor."""
        return self._executor.end_profile()

    def machine_rates(self) -> MachineRates | None:
        """See Executor."""
        return self._executor.machine_rates()

    def progress(self) -> int:
        """See Executor."""
        return self._executor.progress()

    def close(self) -> None:
        """See Executor."""
        self._executor.close()


class Heartbeat:
    """A thread that writes a counter to the flight log, which advances while the engine progresses.

    While the engine loads, the counter is the number of iterations of this thread, which shows only
    that the process runs. From `follow` on it is the engine's progress. Kernels count their tiles
    in native code with the GIL released, so the counter advances within a long step as well. While
    the engine is idle, the thread sleeps.

    Args:
        log: the flight log.
    """

    def __init__(self, log: FlightLog) -> None:
        self._log = log
        self._pulse: Callable[[], int] | None = None
        self._await_work: Callable[[], object] = lambda: None
        self._turns = 0
        self._thread = threading.Thread(target=self._run, name="tidemill-heartbeat", daemon=True)
        self._stop = threading.Event()
        self._thread.start()

    def follow(self, pulse: Callable[[], int], await_work: Callable[[], object]) -> None:
        """Write `pulse()` from now on; `await_work` blocks until the engine has work."""
        self._await_work = await_work
        self._pulse = pulse

    def stop(self) -> None:
        """Stop the thread, which must not run Python code while the interpreter exits."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            self._turns += 1
            if self._pulse is None:
                self._log.beat(self._turns)
            else:
                self._await_work()
                self._log.beat(self._pulse())
