"""KVMemory and Lease: blocks of all cache groups, owned by sequences and freed exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

from tidemill.contract.plan import BlockCopy
from tidemill.memory.block_map import block_map
from tidemill.memory.changes import CacheChanges
from tidemill.memory.evicted import Evicted
from tidemill.memory.pool import BlockPool
from tidemill.memory.prefix import BlockKey, Media, PrefixIndex, pack
from tidemill.memory.snapshots import SnapshotIndex

# A partly matching block is copied if it shares at least 1/LEAST_SHARED of its tokens.
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


class BlockWatcher(Protocol):
    """Hears what becomes of findable blocks, before their memory is written again."""

    def evicted(self, key: BlockKey) -> None:
        """A block's content is lost; called for each cache group."""

    def moved(self, key: BlockKey) -> None:
        """A block's content will be in another block, and this one lost; for each cache group."""

    def holds(self, digest: bytes) -> bool:
        """Whether a tier below the device has the block of a digest."""


class KVMemory:
    """Allocates KV blocks: one pool and one prefix index per cache group.

    All groups have the same block size in tokens, and a sequence holds equally many blocks of each
    group, so block counts are given per group.

    Args:
        num_blocks: number of blocks per cache group.
        block_size: tokens per block.
        prefix_caching: reuse full blocks with equal content.
        recurrent: the model has recurrent layers: a prefix can be reused only up to a block
            boundary whose state snapshot is stored.
        snapshots: maximum number of state snapshots of a recurrent model.

    Attributes:
        snapshots: index of the stored snapshots; None without recurrence or prefix caching.
        evicted: which blocks were forgotten lately; None until somebody wants to know.
        watcher: hears of evictions; None: nobody does.
        changes: what comes and goes; None until somebody wants to know.
        emptied: how often everything was forgotten, blocks in use included.
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
        self.indices = tuple(PrefixIndex() for _ in num_blocks)
        self._pools = tuple(
            BlockPool(count, partial(self._forget, index))
            for count, index in zip(num_blocks, self.indices, strict=True)
        )
        self.evicted: Evicted | None = None
        self.watcher: BlockWatcher | None = None
        self.changes: CacheChanges | None = None
        self.emptied = 0
        self._leases: dict[int, Lease] = {}
        # When the pools' periods ended, from the oldest on that is not yet too long ago.
        self._periods: deque[float] = deque()
        self._oldest = 0

    def _forget(self, index: PrefixIndex, block: int) -> None:
        key = index.forget(block)
        if key is not None and self.snapshots is not None:
            self.snapshots.forget(key)
        if key is not None and self.evicted is not None:
            self.evicted.add(key.digest)
        if key is not None and self.watcher is not None:
            self.watcher.evicted(key)
        if key is not None and self.changes is not None:
            self.changes.evicted(key.digest)

    def remember_evictions(self) -> None:
        """From now on `evicted` knows the blocks that are forgotten."""
        if self.evicted is None and self.prefix_caching:
            self.evicted = Evicted()

    def follow(self) -> CacheChanges:
        """What comes and goes, which is noted from the first call on."""
        if self.changes is None:
            index = self.indices[0]
            keys = (index.key_of(block) for block in index.blocks())
            self.changes = CacheChanges(keys, self._is_below)
        return self.changes

    def _is_below(self, digest: bytes) -> bool:
        return self.watcher is not None and self.watcher.holds(digest)

    @property
    def num_groups(self) -> int:
        """Cache groups."""
        return len(self._pools)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated in every group."""
        pools = self._pools
        return pools[0].num_free if len(pools) == 1 else min(pool.num_free for pool in pools)

    @property
    def num_used(self) -> int:
        """Blocks held, over all groups."""
        return sum(pool.num_used for pool in self._pools)

    @property
    def num_blocks(self) -> int:
        """Blocks that may be used, over all groups."""
        return sum(pool.limit for pool in self._pools)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that one sequence alone can hold."""
        return min(pool.limit for pool in self._pools) * self.block_size

    @property
    def num_cached(self) -> int:
        """Blocks in the prefix index, over all groups; some of them may be in use."""
        return sum(map(len, self.indices))

    @property
    def num_beyond(self) -> int:
        """Blocks in use beyond the size last set by `resize`, over all groups."""
        return sum(pool.num_beyond for pool in self._pools)

    def block_map(self, most: int) -> str:
        """The states of at most so many blocks, evenly chosen of all groups, a letter each: see
        `block_map`."""
        each = most // self.num_groups
        pools = zip(self._pools, self.indices, strict=True)
        return "".join(block_map(pool, index, each) for pool, index in pools)

    def blocks_for(self, tokens: int) -> int:
        """Blocks (per group) that hold so many tokens."""
        return -(-tokens // self.block_size)

    def shareable(self, tokens: int) -> int:
        """Of the tokens that a new sequence has in common with a running one, which is beyond them,
        those that it need not compute: all, but of a recurrent model none, as the state there is
        overwritten."""
        return 0 if self.recurrent else tokens

    def find(self, keys: Sequence[BlockKey]) -> list[tuple[int, ...]]:
        """The longest reusable prefix of `keys`: blocks that are cached in every group; for a
        recurrent model only up to the last boundary with a state snapshot.

        Returns:
            Per found key, the block of each group. No reference is taken yet.
        """
        found = self.held(keys)
        if self.snapshots is not None:
            while found and keys[len(found) - 1] not in self.snapshots:
                found.pop()
        return found

    def held(self, keys: Sequence[BlockKey]) -> list[tuple[int, ...]]:
        """The longest prefix of `keys` whose blocks are cached in every group; as `find`, but
        without regard to snapshots."""
        found: list[tuple[int, ...]] = []
        if not self.prefix_caching:
            return found
        for key in keys:
            blocks = self.blocks_under(key)
            if blocks is None:
                break
            found.append(blocks)
        return found

    def has(self, digest: bytes) -> bool:
        """A block of this digest is cached in every group."""
        return all(index.has(digest) for index in self.indices)

    def blocks_under(self, key: BlockKey) -> tuple[int, ...] | None:
        """Each group's block with this content; None unless all have one."""
        blocks = [index.find(key) for index in self.indices]
        held = tuple(block for block in blocks if block is not None)
        return held if len(held) == len(blocks) else None

    def partial_match(
        self, parent: bytes, token_ids: Sequence[int], media: Media = ()
    ) -> PartialMatch | None:
        """A cached block after the last found one that shares its first tokens with the sequence.

        Its first tokens have the KV that the sequence would compute. A lease that borrows the block
        copies it before writing. A copy moves a whole block, so a few shared tokens are not worth
        it. Recurrent models have states at block boundaries only, hence no partial match.

        Args:
            parent: digest of the last found block, or of the root.
            token_ids: the sequence's next tokens, at most one block.
            media: media that begin among them, by position in the block.
        """
        if not self.prefix_caching or self.recurrent:
            return None
        found = self.indices[0].partial_match(parent, pack(token_ids), media)
        if found is None or found[1] < self.block_size // LEAST_SHARED:
            return None
        blocks = self.blocks_under(found[0])
        return None if blocks is None else PartialMatch(blocks, found[1])

    def alike(self, parent: bytes, token_ids: Sequence[int], media: Media = ()) -> int:
        """How many of the tokens after `parent` some cached block begins with; see
        `partial_match`, which leaves out what is not worth a copy."""
        found = self.indices[0].partial_match(parent, pack(token_ids), media)
        return 0 if found is None else found[1]

    def has_after(self, parent: bytes) -> bool:
        """Some cached block follows the one with this digest."""
        return self.indices[0].has_after(parent)

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
        """Open a lease that starts with blocks just returned by `find` and `partial_match`.

        Until a borrowed block is copied, it occupies one block more than the lease holds.
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

    def resize(self, num_blocks: int) -> tuple[BlockCopy, ...]:
        """Use only the first `num_blocks` blocks of each group, or those again.

        Cached prefixes that no longer fit are forgotten, least recently used first. The others
        move to blocks that remain. Blocks in use stay until they are released. No step may be in
        flight.

        Args:
            num_blocks: per group, at least 1 and at most what the pools were made with.

        Returns:
            Block copies to run before the next step, and before the memory of `retired` blocks is
            returned.
        """
        copies: list[BlockCopy] = []
        for group, (pool, index) in enumerate(zip(self._pools, self.indices, strict=True)):
            limit = min(num_blocks, pool.num_blocks)
            if limit < pool.limit:
                copies += self._compact(group, pool, index, limit)
            pool.set_limit(limit)
            # In order, so that sequences fill pages side by side.
            pool.reuse_first(sorted(b for b in pool.free_blocks() if b not in index))
        return tuple(copies)

    def _compact(
        self, group: int, pool: BlockPool, index: PrefixIndex, limit: int
    ) -> list[BlockCopy]:
        """Forget the free cached blocks that exceed a limit, and move the others below it."""
        free = list(pool.free_blocks())
        cached = [block for block in free if block in index]
        excess = len(cached) - max(0, limit - pool.num_used)
        for block in cached[: max(0, excess)]:
            self._forget(index, block)
        targets = iter(sorted(b for b in free if b < limit and b not in index))
        copies = []
        for block in cached[max(0, excess) :]:
            if block >= limit:
                target = next(targets)
                if self.watcher is not None:
                    self.watcher.moved(index.key_of(block))
                index.move(block, target)
                pool.put_in_place_of(target, block)
                copies.append(BlockCopy(group, block, target))
        return copies

    def retired(self) -> tuple[tuple[int, ...], ...]:
        """Per cache group the unused blocks beyond the size, in ascending order, for an executor
        that returns their memory to the system."""
        return tuple(tuple(pool.retired()) for pool in self._pools)

    def forget_all(self) -> None:
        """Forget every cached prefix, for an executor that empties its cache. Blocks in use, which
        are not findable yet, hold garbage then."""
        self.emptied += 1
        for index in self.indices:
            for block in index.blocks():
                self._forget(index, block)

    def next_evicted(self, most: int) -> list[tuple[BlockKey, tuple[int, ...]]]:
        """Of the `most` blocks that will be handed out next those that are findable: contents, and
        the block of each group."""
        found = []
        for block in islice(self._pools[0].free_blocks(), most):
            if block in self.indices[0]:
                key = self.indices[0].key_of(block)
                blocks = self.blocks_under(key)
                if blocks is not None:
                    found.append((key, blocks))
        return found

    def vacate(self, now: float) -> tuple[tuple[int, ...], ...]:
        """The free blocks that hold nothing worth finding, for an executor that returns their
        memory to the system, and retired ones. The free ones are handed out first from now on, in
        order, so that sequences fill pages side by side.

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
        for pool, index in zip(self._pools, self.indices, strict=True):
            pool.next_period()
            blocks = []
            for block in sorted(pool.free_blocks()):
                if block in index and pool.freed_in(block) < self._oldest:
                    self._forget(index, block)
                if block not in index:
                    blocks.append(block)
            pool.reuse_first(blocks)
            vacant.append((*blocks, *pool.retired()))
        return tuple(vacant)

    def check(self) -> None:
        """Verify pools, indices, and that references and leases agree; O(blocks).

        Raises:
            AssertionError: an invariant is violated (a bug in Tidemill).
        """
        if self.snapshots is not None:
            self.snapshots.check()
        for group, (pool, index) in enumerate(zip(self._pools, self.indices, strict=True)):
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
    """The blocks of one sequence. Made by `KVMemory.lease` or `fork`; `close` frees them once.

    Only the lease that appended a block may write to it. A fork therefore copies the partial block
    that it borrowed before it writes (copy-on-write). The owner keeps writing after the borrowed
    part, which the fork never reads. The same holds for a lease with a partial match.

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
        """Blocks (of the first group) that no other lease holds, which closing would free."""
        pool = self._memory._pools[0]
        return sum(pool.refs(block) == 1 for block in self.tables[0])

    @property
    def borrows(self) -> bool:
        """Its last block is another's, which it may have to copy before it writes."""
        return self._borrowed

    @property
    def capacity(self) -> int:
        """Tokens that the held blocks can store."""
        return self.num_blocks * self._memory.block_size

    def holds(self, tokens: int) -> bool:
        """True if `grow(tokens)` would change nothing."""
        return not self._borrowed and tokens <= len(self.tables[0]) * self._memory.block_size

    def needed(self, tokens: int) -> int:
        """Free blocks per group that `grow(tokens)` would take."""
        more = max(0, self._memory.blocks_for(tokens) - self.num_blocks)
        return more + (1 if self._must_copy() else 0)

    def _must_copy(self) -> bool:
        """True if the last block is borrowed and another lease or the prefix index uses it."""
        if not self._borrowed:
            return False
        memory = self._memory
        return any(
            pool.refs(table[-1]) > 1 or table[-1] in index
            for pool, index, table in zip(memory._pools, memory.indices, self.tables, strict=True)
        )

    def grow(self, tokens: int) -> Growth:
        """Allocate blocks for `tokens` tokens in total, in all groups or none.

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
            pool.release(source, findable=source in memory.indices[group])
            copies.append(BlockCopy(group, source, target))
        return tuple(copies)

    def truncate(self, num_blocks: int) -> None:
        """Free all but the first `num_blocks` blocks; undoes `grow` after a failed step."""
        self._assert_open()
        self._release_from(num_blocks)

    def publish(self, index: int, key: BlockKey) -> bool:
        """Make block `index`, now full and computed, findable under `key` in every group; False
        where another block already is."""
        self._assert_open()
        added = False
        if self._memory.prefix_caching:
            for prefix, table in zip(self._memory.indices, self.tables, strict=True):
                added = prefix.add(key, table[index])
            if self._memory.changes is not None:
                self._memory.changes.published(key)
        return added

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
        # In reverse, so that the tail of a freed sequence is evicted before its prefix.
        memory = self._memory
        for pool, index, table in zip(memory._pools, memory.indices, self.tables, strict=True):
            for block in reversed(table[start:]):
                pool.release(block, findable=block in index)
            del table[start:]

    def _assert_open(self) -> None:
        if self._closed:
            raise RuntimeError("the lease is closed")
