"""InprocExecutor: passes plans directly to the worker in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tidemill.base.errors import LoadCallback
from tidemill.base.files import opened_files
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.contract.config import EngineConfig
from tidemill.contract.moves import BlockMoves, MoveReport, PeerLoad, RecordSizes, Tier
from tidemill.contract.plan import BlockCopy, StepPlan
from tidemill.contract.profile import MachineRates, StepCounters
from tidemill.contract.request import AdapterUse
from tidemill.contract.wire import AdapterInfo, EngineInfo
from tidemill.executor.base import Executor, PlanHandle

if TYPE_CHECKING:
    from tidemill.transfer.link import Link
    from tidemill.transfer.serving import Prefills
    from tidemill.worker.runner import Runner


class InprocExecutor:
    """See `executor.base.Executor`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def submit(self, plan: StepPlan) -> PlanHandle:
        """See Executor."""
        return self._runner.submit(plan)

    def rollback(self, plan: StepPlan) -> None:
        """See Executor."""
        self._runner.rollback(plan)

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """See Executor."""
        return self._runner.backend.when_loaded(on_loaded)

    def stop_loading(self) -> None:
        """See Executor."""
        self._runner.stop_loading()

    def adapter_room(self) -> tuple[int, int]:
        """See Executor."""
        return self._runner.adapters.room()

    def load_adapters(self, slot: int, uses: tuple[AdapterUse, ...]) -> AdapterInfo:
        """See Executor."""
        return self._runner.adapters.load(slot, uses)

    def unload_adapters(self, slot: int) -> None:
        """See Executor."""
        self._runner.adapters.unload(slot)

    def move(self, moves: BlockMoves) -> None:
        """See Executor."""
        self._runner.move(moves)

    def report_moves(self, report: Callable[[MoveReport], None]) -> None:
        """See Executor."""
        self._runner.report_moves(report)

    def on_requests(self, take: Callable[[Link], None]) -> None:
        """See Executor."""
        self._runner.on_requests(take)

    def serve_prefills(self, prefills: Prefills) -> None:
        """See Executor."""
        self._runner.serve_prefills(prefills)

    def peer_loads(self) -> list[tuple[str, PeerLoad]]:
        """See Executor."""
        return self._runner.peer_loads()

    def announce(self, digest: bytes, there: bool) -> None:
        """See Executor."""
        self._runner.announce(digest, there)

    def tier_of(self, digest: bytes) -> Tier | None:
        """See Executor."""
        return self._runner.tier_of(digest)

    def give_back(self, group: int, blocks: Sequence[int]) -> None:
        """See Executor."""
        self._runner.give_back(group, blocks)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """See Executor."""
        self._runner.copy(copies)

    def limit_cache(self, blocks: int) -> None:
        """See Executor."""
        self._runner.limit_cache(blocks)

    def empty_cache(self) -> None:
        """See Executor."""
        self._runner.empty_cache()

    def release_weights(self) -> None:
        """See Executor."""
        self._runner.release_weights()

    def restore_weights(self) -> None:
        """See Executor."""
        self._runner.restore_weights()

    def unloaded_bytes(self) -> int:
        """See Executor."""
        return self._runner.unloaded_bytes()

    def start_profile(self, events: int) -> None:
        """See Executor."""
        self._runner.start_profile(events)

    def end_profile(self) -> StepCounters | None:
        """See Executor."""
        return self._runner.end_profile()

    def machine_rates(self) -> MachineRates | None:
        """See Executor."""
        return self._runner.machine_rates()

    def progress(self) -> int:
        """See Executor."""
        return self._runner.progress()

    def close(self) -> None:
        """See Executor."""
        self._runner.close()


@dataclass(frozen=True, slots=True)
class OpenedExecutor:
    """An executor and the properties of its model that the scheduler needs.

    Attributes:
        executor: runs plans.
        info: the properties resolved at load.
        identity: digest of the weights for block keys.
        num_groups: cache groups of the model.
        tokenizer: tokenizer data for constrained output, or None.
        recurrent: the model has recurrent layers.
        snapshots: number of state snapshots of a recurrent model.
        tiers: what lies below the device, the nearest first.
        record_sizes: of what moves there; None: nothing does.
        listens: other engines ask for its blocks.
        pipelined: two steps compute at the same time where the second takes no token of the first.
        sliced_layers: the model's layers, if a row's can be computed in several steps; else 0.
    """

    executor: Executor
    info: EngineInfo
    identity: str
    num_groups: int
    tokenizer: TokenizerData | None = None
    recurrent: bool = False
    snapshots: int = 0
    sliced_layers: int = 0
    tiers: tuple[Tier, ...] = ()
    record_sizes: RecordSizes | None = None
    listens: bool = False
    pipelined: bool = False


def open_inproc(
    config: EngineConfig,
    progress: Callable[[str], None],
    lost: Callable[[str], None] | None = None,
) -> OpenedExecutor:
    """Load a model into this process, and with `tensor_parallel` or `pipeline_parallel` into
    others.

    Args:
        config: the engine's configuration.
        progress: see `worker.load.load_worker`, which says what is raised.
        lost: called, on another thread, when one of those has ended; None: steps fail.
    """
    from tidemill.worker.load import load_worker

    with opened_files() as opened:
        if config.tensor_parallel > 1 or config.stages > 1:
            from tidemill.executor.ranks.starting import ranks_factory

            loaded = load_worker(
                config,
                progress,
                lambda load, digest: ranks_factory(config, load, digest, lost),
            )
        else:
            loaded = load_worker(config, progress)
    info = msgspec.structs.replace(loaded.info, files=tuple(opened.values()))
    backend = loaded.runner.backend
    spec = backend.spec
    recurrent = spec.state_bytes > 0
    return OpenedExecutor(
        InprocExecutor(loaded.runner),
        info,
        loaded.identity,
        len(spec.cache_groups()),
        loaded.tokenizer,
        recurrent=recurrent,
        snapshots=loaded.snapshots,
        sliced_layers=len(spec.layers) if backend.slices_layers and not recurrent else 0,
        tiers=loaded.runner.tiers,
        record_sizes=loaded.runner.record_sizes,
        pipelined=config.stages > 1 and not recurrent,
        listens=loaded.runner.mover is not None and loaded.runner.mover.listens,
    )
