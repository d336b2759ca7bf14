"""Which states of a recurrent model are kept, for whom, and until when.

A prompt's state is kept at two boundaries: at its last one, for a prompt that begins with all of
it, and where the blocks that others have left end, since that is where prompts part (behind a
system prompt, say) and nobody kept the state. A stream's is kept at its latest boundary, for the
next turn of its conversation.
"""

from __future__ import annotations

from tidemill.memory.prefix import BlockKey
from tidemill.sched.plan_builder import InFlightRow
from tidemill.sched.sequence import Sequence
from tidemill.sched.state import State


def start_behind(state: State, seq: Sequence) -> int:
    """Choose an admitted sequence's marks, and pin what it starts from.

    Returns:
        The snapshot of what stands before its first row; -1 for none.
    """
    memory = state.memory
    if memory.snapshots is None:
        return -1
    size = memory.block_size
    keys = seq.keys_up_to((len(seq.tokens) - 1) // size, size)
    marks = {len(memory.held(keys)), len(keys)}
    seq.marks = tuple(sorted(mark * size for mark in marks if mark * size > seq.planned))
    if not seq.planned:
        return -1
    return memory.snapshots.use(keys[seq.planned // size - 1])


def to_keep(state: State, seq: Sequence, start: int, count: int) -> dict[int, BlockKey]:
    """Position -> boundary, of those that a row of the sequence should keep and nobody has."""
    memory = state.memory
    if memory.snapshots is None:
        return {}
    end, size = start + count, memory.block_size
    marks = [mark for mark in seq.marks if start < mark <= end]
    if end > seq.prompt_len and end % size == 0 and end <= len(seq.tokens):
        marks.append(end)
    return {mark: seq.keys_up_to(mark // size, size)[-1] for mark in marks}


def reserve(state: State, wanted: dict[int, BlockKey]) -> dict[int, tuple[BlockKey, int]]:
    """Position -> boundary and slot, of those that found one."""
    snapshots = state.memory.snapshots
    found = {}
    for position, key in wanted.items():
        slot = None if snapshots is None else snapshots.reserve(key)
        if slot is not None:
            found[position] = key, slot
    return found


def settle(state: State, in_flight: InFlightRow, *, good: bool) -> None:
    """A row's step is over: what it kept can be found, or not."""
    snapshots, seq = state.memory.snapshots, in_flight.seq
    if snapshots is None:
        return
    if in_flight.source >= 0:
        snapshots.unpin(in_flight.source)
    for key in in_flight.keeps:
        if not good:
            snapshots.cancel(key)
            continue
        snapshots.keep(key)
        if in_flight.start >= seq.prompt_len:
            if seq.trail is not None:
                snapshots.forget(seq.trail)
            seq.trail = key
