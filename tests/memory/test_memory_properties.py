"""Pool, prefix index and leases under random use, checked after every operation."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tidemill.memory.lease import KVMemory, Lease
from tidemill.memory.pool import BlockPool
from tidemill.memory.prefix import BlockKey, Media, PrefixIndex, block_key, pack, root_digest

BLOCKS, SIZE = 12, 4


class PoolMachine(RuleBasedStateMachine):
    """The pool against a plain list: order of reuse included."""

    def __init__(self) -> None:
        super().__init__()
        self.reused: list[int] = []
        self.pool = BlockPool(BLOCKS, self.reused.append)
        self.free = list(range(BLOCKS))
        self.refs = dict.fromkeys(range(BLOCKS), 0)
        self.limit = BLOCKS

    @rule(limit=st.integers(1, BLOCKS))
    def set_limit(self, limit: int) -> None:
        self.pool.set_limit(limit)
        back = [b for b in range(self.limit, limit) if not self.refs[b]]
        self.free = back + [b for b in self.free if b < limit]
        self.limit = limit

    @rule(block=st.integers(0, BLOCKS - 1), other=st.integers(0, BLOCKS - 1))
    def put_in_place_of(self, block: int, other: int) -> None:
        if block == other or not {block, other} <= set(self.free):
            return
        self.pool.put_in_place_of(block, other)
        self.free.remove(block)
        at = self.free.index(other)
        self.free[at] = block
        self.free.insert(0, other)

    @rule()
    def allocate(self) -> None:
        if not self.free:
            with pytest.raises(MemoryError):
                self.pool.allocate()
            return
        want = self.free.pop(0)
        assert self.pool.allocate() == want == self.reused[-1]
        self.refs[want] = 1

    @rule(block=st.integers(0, BLOCKS - 1))
    def acquire(self, block: int) -> None:
        if block >= self.limit and not self.refs[block]:
            return  # retired, and in no index
        self.pool.acquire(block)
        if block in self.free:
            self.free.remove(block)
        self.refs[block] += 1

    @rule(block=st.integers(0, BLOCKS - 1), findable=st.booleans())
    def release(self, block: int, findable: bool) -> None:
        if self.refs[block] == 0:
            with pytest.raises(RuntimeError):
                self.pool.release(block, findable=findable)
            return
        self.pool.release(block, findable=findable)
        self.refs[block] -= 1
        if self.refs[block] == 0 and block >= self.limit:
            assert not findable or self.reused[-1] == block, "its content is not forgotten"
        elif self.refs[block] == 0:
            self.free.insert(len(self.free) if findable else 0, block)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert list(self.pool.free_blocks()) == self.free
        used = [block for block, refs in self.refs.items() if refs]
        beyond = [block for block in used if block >= self.limit]
        assert self.pool.num_beyond == len(beyond)
        assert self.pool.num_free == max(0, len(self.free) - len(beyond))
        assert self.pool.num_used == len(used)
        retired = [b for b in range(self.limit, BLOCKS) if not self.refs[b]]
        assert self.pool.retired() == retired


class LeaseMachine(RuleBasedStateMachine):
    """Leases against what each block was last written with."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.memory = KVMemory((BLOCKS, BLOCKS + 3), SIZE)
        self.written: dict[tuple[int, int], list[int]] = {}
        self.texts: dict[int, list[int]] = {}
        self.open: list[Lease] = []
        self.borrowed: set[int] = set()  # of a fork: its last block, until it grows
        self.keys: set[BlockKey] = set()  # that were ever published
        self.limits = [BLOCKS, BLOCKS + 3]
        self.now = 0.0

    def _write(self, lease: Lease, start: int, text: list[int]) -> None:
        for g in range(2):
            for position in range(start, len(text)):
                block = lease.tables[g][position // SIZE]
                slot = self.written.setdefault((g, block), [-1] * SIZE)
                slot[position % SIZE] = text[position]
        self.texts[id(lease)] = text
        keys, parent = [], b"root"
        for i in range(len(text) // SIZE):
            keys.append(block_key(parent, text[i * SIZE : (i + 1) * SIZE]))
            parent = keys[-1].digest
            lease.publish(i, keys[i])
        self.keys.update(keys)

    @rule(target=leases, text=st.lists(st.integers(0, 1), max_size=22))
    def start(self, text: list[int]) -> Lease:
        keys, parent = [], b"root"
        for i in range(len(text) // SIZE):
            keys.append(block_key(parent, text[i * SIZE : (i + 1) * SIZE]))
            parent = keys[-1].digest
        found = self.memory.find(keys)
        lease = self.memory.lease(found)
        self.open.append(lease)
        self.texts[id(lease)] = text[: len(found) * SIZE]
        if lease.needed(len(text)) > self.memory.num_free:
            with pytest.raises(MemoryError):
                lease.grow(len(text))
        else:
            lease.grow(len(text))
            self._write(lease, len(found) * SIZE, text)
        return lease

    @rule(lease=leases, more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def append(self, lease: Lease, more: list[int]) -> None:
        text = self.texts[id(lease)]
        whole = text + more
        if lease.needed(len(whole)) > self.memory.num_free:
            return
        growth = lease.grow(len(whole))
        self.borrowed.discard(id(lease))
        for copy in growth.copies:
            source = self.written.get((copy.group, copy.source), [-1] * SIZE)
            self.written[copy.group, copy.target] = list(source)
        self._write(lease, len(text), whole)

    @rule(target=leases, lease=leases, share=st.floats(0, 1))
    def fork(self, lease: Lease, share: float) -> Lease:
        text = self.texts[id(lease)]
        if id(lease) in self.borrowed:
            lease = self.memory.lease()
            text = []
        else:
            text = text[: int(share * len(text))]
            lease = lease.fork(len(text))
            if len(text) % SIZE:
                self.borrowed.add(id(lease))
        self.open.append(lease)
        self.texts[id(lease)] = text
        return lease

    @rule(seconds=st.sampled_from([0.0, 1.0, 3600.0]))
    def vacate(self, seconds: float) -> None:
        self.now += seconds
        vacant = self.memory.vacate(self.now)
        for g, blocks in enumerate(vacant):
            used = {block for lease in self.open for block in lease.tables[g]}
            findable = {found[g] for key in self.keys for found in self.memory.held([key])}
            assert list(blocks) == sorted(blocks)
            assert not used & set(blocks), "a block in use is vacant"
            assert not findable & set(blocks), "a vacant block is findable"
            for block in blocks:
                self.written.pop((g, block), None)
        pairs = zip(vacant, self.limits, strict=True)
        within = [[block for block in blocks if block < limit] for blocks, limit in pairs]
        count = min(*map(len, within), self.memory.num_free)
        lease = self.memory.lease()
        lease.grow(count * SIZE)
        first = [blocks[:count] for blocks in within]
        assert lease.tables == first, "vacant blocks are reused first, in order"
        lease.close()

    @rule(blocks=st.integers(1, BLOCKS + 3))
    def resize(self, blocks: int) -> None:
        tables = [[list(table) for table in lease.tables] for lease in self.open]
        for copy in self.memory.resize(blocks):
            assert copy.target < blocks <= copy.source
            self.written[copy.group, copy.target] = self.written.pop((copy.group, copy.source))
        self.limits = [min(blocks, BLOCKS), min(blocks, BLOCKS + 3)]
        assert tables == [lease.tables for lease in self.open], "a block in use has moved"
        assert self.memory.num_blocks == sum(self.limits)
        for group, retired in enumerate(self.memory.retired()):
            for block in retired:
                self.written.pop((group, block), None)

    @rule()
    def forget_all(self) -> None:
        self.memory.forget_all()
        assert self.memory.num_cached == 0

    @rule(lease=leases)
    def grow_and_undo(self, lease: Lease) -> None:
        before = [list(table) for table in lease.tables]
        tokens = len(self.texts[id(lease)]) + 2 * SIZE
        if id(lease) in self.borrowed or lease.needed(tokens) > self.memory.num_free:
            return
        lease.grow(tokens)
        lease.truncate(len(before[0]))
        assert lease.tables == before

    @rule(lease=consumes(leases))
    def close(self, lease: Lease) -> None:
        lease.close()
        self.open.remove(lease)
        del self.texts[id(lease)]
        self.borrowed.discard(id(lease))
        with pytest.raises(RuntimeError):
            lease.close()

    @invariant()
    def adds_up(self) -> None:
        self.memory.check()
        for lease in self.open:
            text = self.texts[id(lease)]
            for g in range(2):
                for p, token in enumerate(text):
                    assert self.written[g, lease.tables[g][p // SIZE]][p % SIZE] == token
        for key in self.keys:
            for found in self.memory.held([key]):
                for group, block in enumerate(found):
                    assert pack(self.written[group, block]) == key.tokens, "a prefix has moved away"
        beyond = 0
        for group, limit in enumerate(self.limits):
            used = {block for lease in self.open for block in lease.tables[group]}
            assert self.memory.num_free <= max(0, limit - len(used)), "more than the limit"
            beyond += sum(block >= limit for block in used)
        assert self.memory.num_beyond == beyond
        if not self.open:
            assert self.memory.num_used == 0
            assert self.memory.num_free == min(self.limits)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestLease = LeaseMachine.TestCase
TestLease.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_a_closed_lease_does_nothing_more() -> None:
    memory = KVMemory((4,), SIZE)
    lease = memory.lease()
    lease.grow(SIZE)
    lease.close()
    for call in (
        lambda: lease.grow(SIZE),
        lambda: lease.truncate(0),
        lambda: lease.fork(0),
        lambda: lease.publish(0, block_key(b"root", [1, 2, 3, 4])),
        lease.close,
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    assert memory.num_used == 0
    memory.check()


def test_a_hit_is_verified_not_trusted() -> None:
    index = PrefixIndex()
    key = block_key(b"root", [1, 2, 3, 4])
    assert index.add(key, 5)
    assert index.find(key) == 5
    other = block_key(b"root", [9, 9, 9, 9])
    assert index.find(BlockKey(key.digest, key.parent, other.tokens)) is None
    assert index.find(BlockKey(key.digest, b"elsewhere", key.tokens)) is None
    assert index.find(BlockKey(key.digest, key.parent, key.tokens, ((0, b"image"),))) is None
    assert not index.add(key, 6), "the same content is findable once"
    index.forget(5)
    assert index.find(key) is None and len(index) == 0


def test_identity_covers_everything_the_content_depends_on() -> None:
    base = {"salt": "", "weights": "w", "kv_dtype": "int8", "adapter": None}
    variants = [
        base,
        base | {"salt": "tenant"},
        base | {"weights": "v"},
        base | {"kv_dtype": "bfloat16"},
        base | {"adapter": "a"},
        base | {"salt": "w", "weights": ""},
    ]
    digests = {root_digest(**v) for v in variants}  # type: ignore[arg-type]
    assert len(digests) == len(variants)
    first = block_key(root_digest(), [1, 2])
    assert first.digest != block_key(first.digest, [1, 2]).digest
    assert len(first.digest) == 16
    media: list[Media] = [(), ((0, b"m"),), ((1, b"m"),), ((0, b"n"),), ((0, b"m"), (1, b"n"))]
    assert len({block_key(b"root", [1, 2], held).digest for held in media}) == len(media)


def test_freed_blocks_stay_findable_until_reused() -> None:
    memory = KVMemory((4,), SIZE)
    key = block_key(b"root", [1, 2, 3, 4])
    lease = memory.lease()
    lease.grow(SIZE)
    lease.publish(0, key)
    lease.close()
    assert memory.find([key]) == [(0,)] and memory.num_used == 0
    hold = memory.lease()
    hold.grow(3 * SIZE)
    assert memory.find([key]), "unfindable free blocks are reused first"
    hold.grow(4 * SIZE)
    assert not memory.find([key])
    hold.close()


def test_a_smaller_memory_forgets_the_oldest_prefixes_and_moves_the_others() -> None:
    memory = KVMemory((12,), SIZE)
    texts = [[100 * i + j for j in range(2 * SIZE)] for i in range(5)]
    keys = []
    for text in texts:
        first = block_key(b"root", text[:SIZE])
        keys.append([first, block_key(first.digest, text[SIZE:])])
    leases = [memory.lease() for _ in texts]
    for lease, pair in zip(leases, keys, strict=True):
        lease.grow(2 * SIZE)
        lease.publish(0, pair[0])
        lease.publish(1, pair[1])
    for i in (3, 4, 0, 2):  # from the oldest on; 1 stays in use
        leases[i].close()
    copies = memory.resize(6)
    assert [bool(memory.find(pair)) for pair in keys] == [True, True, True, False, False]
    assert memory.find(keys[0]) == [(0,), (1,)] and memory.find(keys[2]) == [(4,), (5,)]
    assert copies == () and memory.num_free == 4
    memory.resize(12)
    for pair in keys:
        if not memory.find(pair):
            lease = memory.lease()
            lease.grow(2 * SIZE)
            lease.publish(0, pair[0])
            lease.publish(1, pair[1])
            lease.close()
    # Used last: 3 and 4, in blocks 6 to 9. One of the older ones goes for each that moves.
    copies = memory.resize(6)
    assert [bool(memory.find(pair)) for pair in keys] == [False, True, False, True, True]
    assert sorted(copy.source for copy in copies) == [6, 7, 8, 9]
    assert sorted(copy.target for copy in copies) == [0, 1, 4, 5]
    assert memory.retired() == (tuple(range(6, 12)),)
    leases[1].close()
    memory.check()
