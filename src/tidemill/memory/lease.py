"""KVMemory and Lease: blocks of all cache groups, owned by sequences and freed exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from tidemill.contract.plan import BlockCopy
from tidemill.memory.pool import BlockPool
from tidemill.memory.prefix import BlockKey, PrefixIndex, pack
from tidemill.memory.snapshots import SnapshotIndex

# A block that begins alike is copied where the tokens shared are at least one part in so many.
LEAST_SHARED = 4

# A prefix that nobody used for so long is not kept in an idle server's memory. People come back to
# a conversation after minutes, and reading it again would take seconds of all threads.
KEEP_SECONDS = 3600.0


class Growth(NamedTuple):
    """What `Lease.grow` did.

    Attributes:
        new_blocks: per cache group, the ids appended to the block table.
        copies: block copies that must run before the sequence writes.
    """

    new_blocks: tuple[tuple[int, ...], ...]
    copies: tuple[BlockCopy, ...]


class PartialMatch(NamedTuple):
    """A block of which another sequence shares the first tokens.

    Attributes:
        blocks: of each cache group.
        tokens: how many are shared.
    """

    blocks: tuple[int, ...]
    tokens: int


class KVMemory:
    """The KV cache's books: one pool and one prefix index per cache group.

    All groups use blocks of the same number of tokens, and a sequence holds equally many blocks of
    each, so that one number answers for all of them.

    Args:
        num_blocks: per cache group.
        block_size: tokens per block.
        prefix_caching: find full blocks again.
        recurrent: blocks alone are not all that a sequence's past is: a prefix is found up to a
            boundary whose state is there.
        snapshots: states of a recurrent model that can be kept.

    Attributes:
        snapshots: which are kept, of a recurrent model with prefix caching.
    """

    def __init__(
        self,
        num_blocks: tuple[int, ...],
        block_size: int,
        *,
        prefix_caching: bool = True,
        recurrent: bool = False,
        snapshots: int = 0,
    ) -> None:
        self.block_size = block_size
        self.prefix_caching = prefix_caching and (snapshots > 0 or not recurrent)
        self.recurrent = recurrent
        self.snapshots = SnapshotIndex(snapshots) if recurrent and self.prefix_caching else None
        self._indices = tuple(PrefixIndex() for _ in num_blocks)
        self._pools = tuple(
            BlockPool(count, partial(self._forget, index))
            for count, index in zip(num_blocks, self._indices, strict=True)
        )
        self._leases: dict[int, Lease] = {}
        # When the pools' periods ended, from the oldest on that is not yet too long ago.
        self._periods: deque[float] = deque()
        self._oldest = 0

    def _forget(self, index: PrefixIndex, block: int) -> None:
        key = index.forget(block)
        if key is not None and self.snapshots is not None:
            self.snapshots.forget(key)

    @property
    def num_groups(self) -> int:
        """Cache groups."""
        return len(self._pools)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated in every group."""
        return min(pool.num_free for pool in self._pools)

    @property
    def num_used(self) -> int:
        """Blocks held, over all groups."""
        return sum(pool.num_used for pool in self._pools)

    @property
    def num_blocks(self) -> int:
        """Blocks there are, over all groups."""
        return sum(pool.num_blocks for pool in self._pools)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that one sequence alone can hold."""
        return min(pool.num_blocks for pool in self._pools) * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Blocks (per group) that hold so many tokens."""
        return -(-tokens // self.block_size)

    def find(self, keys: Sequence[BlockKey]) -> list[tuple[int, ...]]:
        """The longest prefix of `keys` that a sequence can start behind: blocks that every group
        still has, of a recurrent model up to the last boundary whose state is kept.

        Returns:
            Per found key, the block of each group. Nothing is referenced yet.
        """
        found = self.held(keys)
        if self.snapshots is not None:
            while found and keys[len(found) - 1] not in self.snapshots:
                found.pop()
        return found

    def held(self, keys: Sequence[BlockKey]) -> list[tuple[int, ...]]:
        """The longest run of blocks from the start of `keys` that every group still has."""
        found: list[tuple[int, ...]] = []
        if not self.prefix_caching:
            return found
        for key in keys:
            blocks = self._blocks_under(key)
            if blocks is None:
                break
            found.append(blocks)
        return found

    def _blocks_under(self, key: BlockKey) -> tuple[int, ...] | None:
        """Each group's block with this content; None unless all have one."""
        blocks = [index.find(key) for index in self._indices]
        held = tuple(block for block in blocks if block is not None)
        return held if len(held) == len(blocks) else None

    def partial_match(self, parent: bytes, token_ids: Sequence[int]) -> PartialMatch | None:
        """A block behind the last found one that begins as the sequence goes on.

        Its first tokens' KV is what the sequence would compute; a lease that borrows it copies it
        before it writes. A copy moves a whole block, so that a few tokens are not worth it, and the
        state of a recurrent model stands at boundaries of blocks alone.

        Args:
            parent: digest of the last found block, or the root's.
            token_ids: those that may be shared, a block's at most.
        """
        if not self.prefix_caching or self.recurrent:
            return None
        found = self._indices[0].partial_match(parent, pack(token_ids))
        if found is None or found[1] < self.block_size // LEAST_SHARED:
            return None
        blocks = self._blocks_under(found[0])
        return None if blocks is None else PartialMatch(blocks, found[1])

    def num_reclaimed(self, found: Sequence[tuple[int, ...]]) -> int:
        """How many free blocks per group taking `found` into use would consume, at most."""
        if not found:
            return 0
        return max(
            sum(pool.refs(blocks[g]) == 0 for blocks in found) for g, pool in enumerate(self._pools)
        )

    def lease(
        self, found: Sequence[tuple[int, ...]] = (), partial_match: PartialMatch | None = None
    ) -> Lease:
        """Open a lease, starting from blocks that `find` and `beginning` returned just now.

        While a block is borrowed to be copied, one more than the lease's own is in use.
        """
        if partial_match is not None:
            found = [*found, partial_match.blocks]
        for blocks in found:
            for pool, block in zip(self._pools, blocks, strict=True):
                pool.acquire(block)
        tables = [[blocks[g] for blocks in found] for g in range(self.num_groups)]
        return self._open(tables, borrowed=partial_match is not None)

    def _open(self, tables: list[list[int]], *, borrowed: bool) -> Lease:
        lease = Lease(self, tables, borrowed=borrowed)
        self._leases[id(lease)] = lease
        return lease

    def vacate(self, now: float) -> tuple[tuple[int, ...], ...]:
        """The free blocks that hold nothing worth finding, for an executor that returns their
        memory to the system. They are handed out first from now on, in order, so that sequences
        fill pages side by side.

        A prefix that nobody used for `KEEP_SECONDS` is forgotten here first. Its age counts from
        the first call after its last use: this is called now and then, and uses need no clock.

        Args:
            now: seconds on any clock that goes forward.

        Returns:
            Per cache group, in ascending order.
        """
        self._periods.append(now)
        while self._periods and self._periods[0] <= now - KEEP_SECONDS:
            self._periods.popleft()
            self._oldest += 1
        vacant = []
        for pool, index in zip(self._pools, self._indices, strict=True):
            pool.next_period()
            blocks = []
            for block in sorted(pool.free_blocks()):
                if block in index and pool.freed_in(block) < self._oldest:
                    self._forget(index, block)
                if block not in index:
                    blocks.append(block)
            pool.reuse_first(blocks)
            vacant.append(tuple(blocks))
        return tuple(vacant)

    def check(self) -> None:
        """Verify pools, indices, and that references and leases agree; O(blocks).

        Raises:
            AssertionError: something does not add up (a defect of ours).
        """
        if self.snapshots is not None:
            self.snapshots.check()
        for group, (pool, index) in enumerate(zip(self._pools, self._indices, strict=True)):
            pool.check()
            index.check()
            held: dict[int, int] = {}
            for lease in self._leases.values():
                for block in lease.tables[group]:
                    held[block] = held.get(block, 0) + 1
            for block in range(pool.num_blocks):
                count = held.get(block, 0)
                assert pool.refs(block) == count, (
                    f"block {block} of group {group}: {pool.refs(block)} references, "
                    f"{count} leases hold it"
                )


class Lease:
    """One sequence's blocks. Made by `KVMemory.lease` or `fork`; `close` frees them, exactly once.

    A block may be written only by the lease that appended it. A fork therefore copies the partial
    block it borrowed before it writes (copy on write); its original owner goes on writing behind
    the borrowed part, which the fork never reads. So does a lease that begins with a part of
    another sequence's block.

    Attributes:
        tables: per cache group, the block ids in order of position.
    """

    __slots__ = ("_borrowed", "_closed", "_memory", "tables")

    def __init__(self, memory: KVMemory, tables: list[list[int]], *, borrowed: bool) -> None:
        self._memory = memory
        self.tables = tables
        self._borrowed = borrowed
        self._closed = False

    @property
    def num_blocks(self) -> int:
        """Blocks held, per group."""
        return len(self.tables[0])

    @property
    def num_exclusive(self) -> int:
        """Blocks held (of the first group) that nobody else holds: what closing would free."""
        pool = self._memory._pools[0]
        return sum(pool.refs(block) == 1 for block in self.tables[0])

    @property
    def capacity(self) -> int:
        """Tokens the held blocks have room for."""
        return self.num_blocks * self._memory.block_size

    def needed(self, tokens: int) -> int:
        """Free blocks per group that `grow(tokens)` would take."""
        more = max(0, self._memory.blocks_for(tokens) - self.num_blocks)
        return more + (1 if self._must_copy() else 0)

    def _must_copy(self) -> bool:
        """The last block is borrowed, and somebody else holds it or it is still findable."""
        if not self._borrowed:
            return False
        memory = self._memory
        return any(
            pool.refs(table[-1]) > 1 or table[-1] in index
            for pool, index, table in zip(memory._pools, memory._indices, self.tables, strict=True)
        )

    def grow(self, tokens: int) -> Growth:
        """Make room for so many tokens in all, all groups or none.

        Raises:
            MemoryError: `needed(tokens)` exceeds the free blocks; nothing changed.
        """
        self._assert_open()
        memory = self._memory
        if self.needed(tokens) > memory.num_free:
            raise MemoryError("not enough free KV blocks")
        copies: tuple[BlockCopy, ...] = ()
        if self._borrowed:
            copies = self._copy_last() if self._must_copy() else ()
            self._borrowed = False
        more = max(0, memory.blocks_for(tokens) - self.num_blocks)
        appended = []
        for pool, table in zip(memory._pools, self.tables, strict=True):
            blocks = tuple(pool.allocate() for _ in range(more))
            table.extend(blocks)
            appended.append(blocks)
        return Growth(tuple(appended), copies)

    def _copy_last(self) -> tuple[BlockCopy, ...]:
        copies = []
        memory = self._memory
        for group, (pool, table) in enumerate(zip(memory._pools, self.tables, strict=True)):
            source, target = table[-1], pool.allocate()
            table[-1] = target
            pool.release(source, findable=source in memory._indices[group])
            copies.append(BlockCopy(group, source, target))
        return tuple(copies)

    def truncate(self, num_blocks: int) -> None:
        """Give back all but the first blocks: what undoes `grow` when a step failed."""
        self._assert_open()
        self._release_from(num_blocks)

    def publish(self, index: int, key: BlockKey) -> None:
        """Make block `index`, now full and computed, findable under `key` in every group."""
        self._assert_open()
        if self._memory.prefix_caching:
            for prefix, table in zip(self._memory._indices, self.tables, strict=True):
                prefix.add(key, table[index])

    def fork(self, tokens: int) -> Lease:
        """A second lease on the first `tokens` tokens' blocks; a partial last one is borrowed."""
        self._assert_open()
        memory = self._memory
        count = memory.blocks_for(tokens)
        tables = [table[:count] for table in self.tables]
        for pool, table in zip(memory._pools, tables, strict=True):
            for block in table:
                pool.acquire(block)
        return memory._open(tables, borrowed=tokens % memory.block_size != 0)

    def close(self) -> None:
        """Free everything.

        Raises:
            RuntimeError: the lease was closed before.
        """
        self._assert_open()
        self._release_from(0)
        self._closed = True
        del self._memory._leases[id(self)]

    def _release_from(self, start: int) -> None:
        # Last block first: of a freed sequence the tail is reused before the prefix it hangs on.
        memory = self._memory
        for pool, index, table in zip(memory._pools, memory._indices, self.tables, strict=True):
            for block in reversed(table[start:]):
                pool.release(block, findable=block in index)
            del table[start:]

    def _assert_open(self) -> None:
        if self._closed:
            raise RuntimeError("the lease is closed")
