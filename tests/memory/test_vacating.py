"""Which blocks an idle cache gives up, and when."""

from __future__ import annotations

from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import BlockKey, block_key

BLOCKS, SIZE = 16, 4
HOUR = 3600.0


def _keys(text: list[int]) -> list[BlockKey]:
    keys: list[BlockKey] = []
    for at in range(0, len(text) - SIZE + 1, SIZE):
        keys.append(block_key(keys[-1].digest if keys else b"root", text[at : at + SIZE]))
    return keys


def _use(memory: KVMemory, text: list[int]) -> int:
    """Compute a text, and free it; how many of its blocks were found."""
    keys = _keys(text)
    found = memory.find(keys)
    lease = memory.lease(found)
    lease.grow(len(text))
    for index, key in enumerate(keys):
        lease.publish(index, key)
    lease.close()
    return len(found)


def test_only_what_can_be_found_stays_and_for_an_hour() -> None:
    memory = KVMemory((BLOCKS,), SIZE)
    old, new = list(range(4 * SIZE + 1)), list(range(50, 50 + 2 * SIZE))
    _use(memory, old)  # five blocks, of which the last is not full
    (vacant,) = memory.vacate(100.0)
    assert vacant == tuple(range(4, BLOCKS))
    assert _use(memory, new) == 0  # blocks 4 and 5
    (vacant,) = memory.vacate(100.0 + HOUR - 1)
    assert vacant == tuple(range(6, BLOCKS))
    (vacant,) = memory.vacate(100.0 + HOUR)
    assert vacant == (0, 1, 2, 3, *range(6, BLOCKS)), "the old text went, the new one stays"
    assert _use(memory, old) == 0
    assert _use(memory, new) == 2
    memory.check()


def test_each_use_begins_the_hour_anew() -> None:
    memory = KVMemory((BLOCKS,), SIZE)
    text = list(range(3 * SIZE))
    for hour in range(4):
        assert _use(memory, text) == (3 if hour else 0)
        (vacant,) = memory.vacate(hour * HOUR)
        assert vacant == tuple(range(3, BLOCKS))
    (vacant,) = memory.vacate(4 * HOUR)
    assert vacant == tuple(range(BLOCKS))


def test_a_prefix_in_use_stays() -> None:
    memory = KVMemory((BLOCKS,), SIZE)
    text = list(range(2 * SIZE))
    _use(memory, text)
    memory.vacate(0.0)
    lease = memory.lease(memory.find(_keys(text)))
    (vacant,) = memory.vacate(10 * HOUR)
    assert vacant == tuple(range(2, BLOCKS))
    lease.close()
    assert _use(memory, text) == 2


def test_snapshots_go_with_their_blocks() -> None:
    memory = KVMemory((BLOCKS,), SIZE, recurrent=True, snapshots=2)
    assert memory.snapshots is not None
    key = _keys(list(range(SIZE)))[0]
    _use(memory, list(range(SIZE)))
    memory.snapshots.reserve(key)
    memory.snapshots.keep(key)
    memory.vacate(0.0)
    assert key in memory.snapshots
    memory.vacate(HOUR)
    assert key not in memory.snapshots
    memory.check()
