"""The states of blocks, as people see them."""

from __future__ import annotations

from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import block_key


def test_a_letter_says_who_holds_a_block() -> None:
    memory = KVMemory((8,), 4)
    assert memory.block_map(8) == "........"
    lease = memory.lease()
    lease.grow(12)
    first = lease.tables[0][0]
    lease.publish(0, block_key(b"root", [1, 2, 3, 4]))
    assert memory.block_map(8).count("u") == 3
    fork = lease.fork(12)
    assert memory.block_map(8).count("s") == 3
    fork.close()
    lease.close()
    found = memory.block_map(8)
    assert found[first] == "c", "a block that a later prompt may find"
    assert found.count(".") == 7


def test_of_a_large_cache_a_part_is_read() -> None:
    memory = KVMemory((1000, 1000), 4)
    lease = memory.lease()
    lease.grow(4000)
    assert memory.block_map(200) == "u" * 200
    assert memory.block_map(1) == ""
    lease.close()
