"""Snapshots of recurrent states: bounded, found with their blocks, never given away while read."""

from __future__ import annotations

import random

from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import BlockKey, block_key
from tidemill.memory.snapshots import SnapshotIndex

SIZE = 4


def _keys(tokens: list[int]) -> list[BlockKey]:
    keys: list[BlockKey] = []
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        parent = keys[-1].digest if keys else b"root"
        keys.append(block_key(parent, tokens[start : start + SIZE]))
    return keys


def test_a_prefix_is_found_up_to_a_boundary_whose_state_is_kept() -> None:
    memory = KVMemory((8,), SIZE, recurrent=True, snapshots=2)
    snapshots = memory.snapshots
    assert snapshots is not None
    keys = _keys(list(range(16)))
    lease = memory.lease()
    lease.grow(16)
    for i, key in enumerate(keys):
        lease.publish(i, key)
    assert len(memory.held(keys)) == 4 and memory.find(keys) == []
    slot = snapshots.reserve(keys[1])
    assert slot is not None and snapshots.reserve(keys[1]) is None
    assert memory.find(keys) == []  # its step is not committed
    snapshots.keep(keys[1])
    assert memory.find(keys) == [(b,) for b in lease.tables[0][:2]]
    assert memory.find(keys[:1]) == []
    lease.close()
    other = memory.lease()
    other.grow(8 * SIZE)  # takes every block
    assert keys[1] not in snapshots, "a snapshot outlived its block"
    other.close()
    memory.check()


def test_without_room_for_states_there_is_no_prefix_cache() -> None:
    for memory in (
        KVMemory((8,), SIZE, recurrent=True),
        KVMemory((8,), SIZE, recurrent=True, snapshots=3, prefix_caching=False),
    ):
        assert memory.snapshots is None and not memory.prefix_caching


def test_what_is_read_is_not_given_away() -> None:
    index = SnapshotIndex(2)
    first, second, third = _keys(list(range(12)))
    for key in (first, second):
        index.reserve(key)
        index.keep(key)
    slot = index.use(first)
    taken = index.reserve(third)
    assert taken is not None and taken != slot and second not in index
    assert index.reserve(second) is None, "every slot is in use"
    index.forget(first)
    assert first not in index
    assert index.reserve(second) is None, "the slot is still read"
    index.unpin(slot)
    index.check()
    assert index.reserve(second) == slot
    index.cancel(second)
    index.cancel(third)
    index.check()


def test_the_books_add_up() -> None:
    rng = random.Random(3)
    index = SnapshotIndex(5)
    keys = _keys([rng.randrange(9) for _ in range(40 * SIZE)])
    reserved: list[BlockKey] = []
    pinned: list[int] = []
    for _ in range(4000):
        key = rng.choice(keys)
        action = rng.randrange(5)
        if action == 0 and index.reserve(key) is not None:
            reserved.append(key)
        elif action == 1 and reserved:
            settle = index.keep if rng.random() < 0.7 else index.cancel
            settle(reserved.pop(rng.randrange(len(reserved))))
        elif action == 2 and key in index:
            pinned.append(index.use(key))
        elif action == 3 and pinned:
            index.unpin(pinned.pop(rng.randrange(len(pinned))))
        elif action == 4:
            index.forget(key)
        index.check()
        assert len(index) + len(reserved) <= 5
