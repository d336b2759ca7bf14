"""Executor: the interface that runs step plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import LoadCallback
from tidemill.contract.moves import BlockMoves, MoveReport, PeerLoad, Tier
from tidemill.contract.plan import BlockCopy, StepPlan, StepResult
from tidemill.contract.profile import MachineRates, StepCounters
from tidemill.contract.request import AdapterUse
from tidemill.contract.wire import AdapterInfo

if TYPE_CHECKING:
    from tidemill.transfer.link import Link
    from tidemill.transfer.serving import Prefills


class PlanHandle(Protocol):
    """A submitted plan."""

    def set_mask(self, row: int, draft: int, bits: NDArray[np.uint8]) -> None:
        """Set the token mask that a row with `mask_announced` waits for; see
        `backends.base.StepHandle`. `row` is an index into the plan's rows."""

    def done(self, seconds: float = 0.0) -> bool:
        """True if `result` would not block; waits at most `seconds` for that."""

    def result(self) -> StepResult:
        """Wait for the step. Raises TidemillError when it failed."""


class Executor(Protocol):
    """Runs plans in order; at most two are in flight.

    After a failure every plan in flight is rolled back, newest first, before the next is submitted.
    """

    def submit(self, plan: StepPlan) -> PlanHandle:
        """Queue a plan."""

    def rollback(self, plan: StepPlan) -> None:
        """Undo what a failed plan in flight changed; unknown plans are ignored."""

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """See `backends.base.Backend`."""

    def stop_loading(self) -> None:
        """See `backends.base.Backend`."""

    def adapter_room(self) -> tuple[int, int]:
        """Bytes that adapters may take, and the most slots for them."""

    def load_adapters(self, slot: int, uses: tuple[AdapterUse, ...]) -> AdapterInfo:
        """Read adapters, verify them and hold the sum of their changes in a free slot (from 1 on).
        Called on any thread, also while plans are in flight; calls do not overlap.

        Raises TidemillError: NOT_FOUND, MODEL_FILE or UNSUPPORTED for the files, RESOURCE for
        memory. Then the slot stays free.
        """

    def unload_adapters(self, slot: int) -> None:
        """Free a slot, which no plan in flight names."""

    def move(self, moves: BlockMoves) -> None:
        """Begin moves of blocks between the cache and the tiers below it, and cancel others; they
        run beside plans."""

    def report_moves(self, report: Callable[[MoveReport], None]) -> None:
        """Call this with what has ended, on any thread. Before the first move."""

    def on_requests(self, take: Callable[[Link], None]) -> None:
        """Call this with each connection of another server that sends requests, on any thread,
        where this executor's engine listens for other engines."""

    def serve_prefills(self, prefills: Prefills) -> None:
        """Have other engines' prompts computed by this, where this executor's engine listens for
        them."""

    def peer_loads(self) -> list[tuple[str, PeerLoad]]:
        """Engines that may compute prompts for this one, by address, and what they have to do; on
        any thread."""

    def announce(self, digest: bytes, there: bool) -> None:
        """Tell other engines that the cache has a block of a digest, or not any more."""

    def tier_of(self, digest: bytes) -> Tier | None:
        """The nearest tier that has a block of a digest, good or not; on any thread."""

    def give_back(self, group: int, blocks: Sequence[int]) -> None:
        """Blocks of a cache group, in ascending order, hold nothing: their memory may be returned
        to the system. No plan may be outstanding."""

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks now, in order. No plan may be in flight."""

    def limit_cache(self, blocks: int) -> None:
        """See `backends.base.Backend`."""

    def empty_cache(self) -> None:
        """See `backends.base.Backend`."""

    def release_weights(self) -> None:
        """See `backends.base.Backend`."""

    def restore_weights(self) -> None:
        """See `backends.base.Backend`."""

    def unloaded_bytes(self) -> int:
        """Bytes of weights that are not in memory yet, while they load."""

    def start_profile(self, events: int) -> None:
        """See `backends.base.Backend`."""

    def end_profile(self) -> StepCounters | None:
        """See `backends.base.Backend`."""

    def machine_rates(self) -> MachineRates | None:
        """See `backends.base.Backend`."""

    def progress(self) -> int:
        """A counter that advances while a step computes; it tells a slow step from a stall."""

    def close(self) -> None:
        """Free everything."""
