"""Blocks of which another sequence shares the first tokens: found, borrowed, copied, forgotten."""

from __future__ import annotations

import random

from tidemill.memory.lease import KVMemory
from tidemill.memory.prefix import PrefixIndex, block_key, pack, root_digest

SIZE = 8
ROOT = root_digest(salt="a")


def _published(memory: KVMemory, tokens: list[int], root: bytes = ROOT) -> tuple[int, ...]:
    """A block that holds these tokens, computed and free again."""
    lease = memory.lease()
    lease.grow(len(tokens))
    lease.publish(0, block_key(root, tokens))
    blocks = tuple(table[0] for table in lease.tables)
    lease.close()
    return blocks


def test_shared_tokens_are_counted_as_a_loop_would() -> None:
    rng = random.Random(1)
    for _ in range(500):
        tokens = [rng.choice((0, 1, 256, 2**31 - 1)) for _ in range(SIZE)]
        others = tokens[: rng.randrange(SIZE + 1)]
        others += [rng.choice((0, 1, 256)) for _ in range(rng.randrange(SIZE + 1 - len(others)))]
        index = PrefixIndex()
        key = block_key(ROOT, tokens)
        index.add(key, 3)
        want = 0
        while want < len(others) and others[want] == tokens[want]:
            want += 1
        assert index.partial_match(ROOT, pack(others)) == ((key, want) if want else None)


def test_the_block_with_most_in_common_is_taken_of_the_latest() -> None:
    memory = KVMemory((64,), SIZE)
    far = _published(memory, [1, 2, 3, 4, 9, 9, 9, 9])
    near = _published(memory, [1, 2, 3, 4, 5, 6, 9, 9])
    _published(memory, [1, 2, 8, 8, 8, 8, 8, 8])
    found = memory.partial_match(ROOT, [1, 2, 3, 4, 5, 6, 7])
    assert found is not None and (found.blocks, found.tokens) == (near, 6)
    assert (found := memory.partial_match(ROOT, [1, 2, 3, 4, 9])) and found.blocks == far
    for i in range(32):
        _published(memory, [1, 2, 3, 100 + i, 0, 0, 0, 0])
    assert (found := memory.partial_match(ROOT, [1, 2, 3, 4, 5, 6, 7])) and found.tokens == 3


def test_too_little_another_salt_or_a_recurrent_model_shares_nothing() -> None:
    memory = KVMemory((16,), SIZE)
    _published(memory, [1, 2, 3, 4, 5, 6, 7, 8])
    assert memory.partial_match(ROOT, [1, 9]) is None
    assert memory.partial_match(root_digest(salt="b"), [1, 2, 3, 4]) is None
    assert memory.partial_match(ROOT, []) is None
    recurrent = KVMemory((16,), SIZE, recurrent=True, snapshots=4)
    _published(recurrent, [1, 2, 3, 4, 5, 6, 7, 8])
    assert recurrent.partial_match(ROOT, [1, 2, 3, 4]) is None
    without = KVMemory((16,), SIZE, prefix_caching=False)
    assert without.partial_match(ROOT, [1, 2, 3, 4]) is None


def test_a_borrowed_block_is_copied_in_every_group_and_stays_findable() -> None:
    memory = KVMemory((8, 8), SIZE)
    blocks = _published(memory, [1, 2, 3, 4, 5, 6, 7, 8])
    found = memory.partial_match(ROOT, [1, 2, 3, 7])
    assert found is not None
    lease = memory.lease([], found)
    memory.check()
    assert lease.needed(12) == 2  # the copy, and one behind it
    growth = lease.grow(12)
    assert [(c.group, c.source) for c in growth.copies] == [(0, blocks[0]), (1, blocks[1])]
    for copy, table in zip(growth.copies, lease.tables, strict=True):
        assert table[0] == copy.target != copy.source
    memory.check()
    assert memory.partial_match(ROOT, [1, 2, 3, 4])
    lease.close()
    memory.check()


def test_what_is_reused_is_no_longer_found() -> None:
    memory = KVMemory((2,), SIZE)
    _published(memory, [1, 2, 3, 4, 5, 6, 7, 8])
    lease = memory.lease()
    lease.grow(2 * SIZE)
    assert memory.partial_match(ROOT, [1, 2, 3, 4]) is None
    memory.check()
