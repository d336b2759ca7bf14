"""GroupBackend: a backend whose model lies in several processes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from tidemill.backends.base import (
    Backend,
    BackendMemory,
    BackendProfile,
    ExportedBlocks,
    Int32,
    MachineRates,
    StepHandle,
    StepInputs,
    StepOutputs,
    UInt8,
)
from tidemill.base.errors import ErrorKind, LoadCallback, TidemillError, unsupported
from tidemill.executor.ranks.messages import (
    Allocate,
    Do,
    LimitCache,
    MoveBlocks,
    step_of,
    table_of,
)
from tidemill.executor.ranks.peers import Peers
from tidemill.models.adapters import Changes


class GroupHandle:
    """See backends.base.StepHandle."""

    def __init__(self, own: StepHandle, peers: Peers) -> None:
        self._own, self._peers = own, peers
        self.set_mask, self.done = own.set_mask, own.done

    def result(self) -> StepOutputs:
        """See backends.base.StepHandle."""
        try:
            return self._own.result()
        except TidemillError as error:
            if error.kind is ErrorKind.UNAVAILABLE:
                self._peers.await_loss()
            raise


class GroupBackend:
    """See backends.base.Backend. Rank 0's part is in this process, and every step goes to all.

    When another rank ends, steps fail as UNAVAILABLE from then on.

    Args:
        own: rank 0's part.
        peers: the processes of the others, loaded.
        resources: what they exchange states through; it is closed with the backend.
        setting: that asks for them.
        note: what they are, for people.
    """

    def __init__(
        self, own: Backend, peers: Peers, resources: ExitStack, setting: str, note: str
    ) -> None:
        self._own, self._peers, self._resources = own, peers, resources
        self._setting = setting
        self.spec, self.options = own.spec, own.options
        self.slices_layers, self.verifies_drafts = own.slices_layers, own.verifies_drafts
        self.notes = (note,)

    def when_loaded(self, on_loaded: LoadCallback) -> bool:
        """See Backend. The other ranks have loaded their parts."""
        return self._own.when_loaded(on_loaded)

    def stop_loading(self) -> None:
        """See Backend."""
        self._own.stop_loading()

    def memory(self) -> BackendMemory:
        """See Backend. Of all ranks, those of the others as of their last command."""
        own = self._own.memory()
        weights, kv, mapped, promised = map(
            sum, zip(*(reply.memory for reply in self._peers.replies), strict=True)
        )
        return replace(
            own,
            weight_bytes=own.weight_bytes + weights,
            kv_bytes=own.kv_bytes + kv,
            mapped_bytes=own.mapped_bytes + mapped,
            promised_bytes=own.promised_bytes + promised,
        )

    def allocate_cache(
        self,
        num_blocks: tuple[int, ...],
        kv_dtype: str | None = None,
        states: int = 2,
        *,
        unchecked: bool = False,
    ) -> None:
        """See Backend. Each rank has the heads of its part in every block."""
        self._own.allocate_cache(num_blocks, kv_dtype, states, unchecked=unchecked)
        self._peers.call(Allocate(num_blocks, kv_dtype, states, unchecked))

    def limit_cache(self, blocks: int) -> None:
        """See Backend."""
        self._own.limit_cache(blocks)
        self._peers.call(LimitCache(blocks))

    def empty_cache(self) -> None:
        """See Backend."""
        self._own.empty_cache()
        self._peers.call(Do("empty_cache"))

    def release_weights(self) -> None:
        """See Backend."""
        self._own.release_weights()
        self._peers.call(Do("release_weights"))

    def restore_weights(self) -> None:
        """See Backend."""
        self._own.restore_weights()
        self._peers.call(Do("restore_weights"))

    def submit(self, inputs: StepInputs) -> StepHandle:
        """See Backend. The other ranks begin when they are told; the handle is rank 0's."""
        handle = self._own.submit(inputs)  # first: what it refuses, none computes
        self._peers.submit(step_of(inputs))
        return GroupHandle(handle, self._peers)

    def copy_blocks(self, group: int, pairs: Int32) -> None:
        """See Backend."""
        self._own.copy_blocks(group, pairs)
        self._peers.call(MoveBlocks(group, table_of(pairs), copies=True))

    def give_back_blocks(self, group: int, blocks: Int32) -> None:
        """See Backend."""
        self._own.give_back_blocks(group, blocks)
        self._peers.call(MoveBlocks(group, table_of(blocks.reshape(1, -1)), copies=False))

    def load_adapter(self, slot: int, changes: Changes) -> int:
        """See Backend: refused."""
        raise self._in_parts("adapters change the whole model")

    def unload_adapter(self, slot: int) -> None:
        """See Backend."""

    def export_blocks(self, group: int, blocks: Int32) -> ExportedBlocks:
        """See Backend: refused."""
        raise self._in_parts("no process has whole blocks")

    def import_blocks(self, group: int, blocks: Int32, data: ExportedBlocks) -> None:
        """See Backend: refused."""
        raise self._in_parts("no process has whole blocks")

    def block_bytes(self) -> tuple[int, ...]:
        """See Backend: blocks do not leave the cache."""
        raise self._in_parts("no process has whole blocks")

    def read_blocks(self, group: int, blocks: Int32, out: UInt8) -> None:
        """See `block_bytes`."""
        raise self._in_parts("no process has whole blocks")

    def write_blocks(self, group: int, blocks: Int32, data: UInt8) -> None:
        """See `block_bytes`."""
        raise self._in_parts("no process has whole blocks")

    def state_bytes(self) -> int:
        """See `block_bytes`."""
        raise self._in_parts("no process has whole states")

    def read_state(self, state: int, at: int, out: UInt8) -> None:
        """See `block_bytes`."""
        raise self._in_parts("no process has whole states")

    def write_state(self, state: int, at: int, data: UInt8, tokens: int) -> None:
        """See `block_bytes`."""
        raise self._in_parts("no process has whole states")

    def checksum(self, data: UInt8) -> int:
        """See Backend."""
        return self._own.checksum(data)

    def start_profile(self, events: int) -> None:
        """See Backend. Rank 0 alone is counted: the others do the same at the same time."""
        self._own.start_profile(events)

    def end_profile(self) -> BackendProfile | None:
        """See `start_profile`."""
        return self._own.end_profile()

    def machine_rates(self) -> MachineRates | None:
        """See Backend; of rank 0's threads."""
        return self._own.machine_rates()

    def progress(self) -> int:
        """See Backend. Of all: the ranks wait for each other."""
        return self._own.progress() + self._peers.progress()

    def close(self) -> None:
        """See Backend."""
        self._own.close()
        self._peers.close()
        self._resources.close()

    def _in_parts(self, why: str) -> TidemillError:
        return unsupported(
            self._setting, f"this needs a model in one process ({self._setting} 1): {why}"
        )
