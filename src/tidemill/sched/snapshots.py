"""State snapshots of recurrent models: where they are taken, and how long they are stored.

A prompt's state is stored at two block boundaries: at its last one, for prompts that extend it, and
at the end of the blocks already cached, where prompts diverge (after a common system prompt) and no
state is stored yet. A stream's state is stored at its latest boundary, for the next turn of its
conversation. With tiers below the device a prompt's states go down once they are computed, a
stream's when it leaves.
"""

from __future__ import annotations

from tidemill.memory.prefix import BlockKey
from tidemill.sched.plan_builder import InFlightRow
from tidemill.sched.sequence import Sequence
from tidemill.sched.state import State


def start_snapshot(state: State, seq: Sequence) -> int:
    """Choose the snapshot positions of an admitted sequence, and pin the snapshot it starts from.

    Returns:
        The slot of the snapshot of the state before its first row; -1 for none.
    """
    memory = state.memory
    if memory.snapshots is None:
        return -1
    size = memory.block_size
    keys = seq.keys_up_to((len(seq.tokens) - 1) // size, size)
    marks = {len(memory.held(keys)), len(keys)}
    seq.snapshot_positions = tuple(
        sorted(mark * size for mark in marks if mark * size > seq.planned)
    )
    if not seq.planned:
        return -1
    return memory.snapshots.use(keys[seq.planned // size - 1])


def snapshots_to_take(state: State, seq: Sequence, start: int, count: int) -> dict[int, BlockKey]:
    """Position -> block key, of the boundaries at which a row should store a snapshot."""
    memory = state.memory
    if memory.snapshots is None:
        return {}
    end, size = start + count, memory.block_size
    marks = [mark for mark in seq.snapshot_positions if start < mark <= end]
    if end > seq.prompt_len and end % size == 0 and end <= len(seq.tokens):
        marks.append(end)
    return {mark: seq.keys_up_to(mark // size, size)[-1] for mark in marks}


def reserve(state: State, wanted: dict[int, BlockKey]) -> dict[int, tuple[BlockKey, int]]:
    """Position -> block key and reserved slot, of the boundaries that got a slot."""
    snapshots = state.memory.snapshots
    found = {}
    for position, key in wanted.items():
        slot = None if snapshots is None else snapshots.reserve(key)
        if slot is not None:
            found[position] = key, slot
    return found


def finish_row(state: State, in_flight: InFlightRow, *, good: bool) -> None:
    """After a row's step: publish its snapshots if `good`, else cancel them; unpin its source."""
    snapshots, seq = state.memory.snapshots, in_flight.seq
    if snapshots is None:
        return
    if in_flight.source >= 0:
        snapshots.unpin(in_flight.source)
    for key in in_flight.snapshot_keys:
        if not good:
            snapshots.cancel(key)
            continue
        snapshots.keep(key)
        if in_flight.start < seq.prompt_len:
            leave(state, key)
        else:
            if seq.output_snapshot is not None:
                snapshots.forget(seq.output_snapshot)
            seq.output_snapshot = key


def leave(state: State, key: BlockKey | None) -> None:
    """The state at the end of a block goes down, where there are tiers."""
    if key is not None and state.bringing is not None:
        state.bringing.tiers.state_published(key)
