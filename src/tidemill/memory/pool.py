"""BlockPool: reference-counted KV blocks of one cache group, O(1) per operation.

A block is free if its reference count is 0. Free blocks form a doubly linked list in eviction
order. A freed block that is in the prefix index is appended at the back, so that it stays cached as
long as possible (LRU); any other is inserted at the front.

A pool can be limited to its first blocks. A free block beyond the limit is retired: it is not in
the list until the limit is raised. One in use stays until it is released, and meanwhile another
block less can be allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """A fixed number of blocks, reference-counted.

    Args:
        num_blocks: number of blocks; their ids are 0 .. num_blocks - 1. They are all within the
            limit at first.
        on_reuse: called with a block's id before it is allocated again, to drop its old content
            from the prefix index.

    Attributes:
        limit: blocks that may be used; those with a lower id.

    Invariants (checked by `check`): a block is in the free list if and only if its reference count
    is 0 and its id is below the limit; the list visits every free block once; counts are never
    negative.
    """

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], None] | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self.num_blocks = self.limit = num_blocks
        self._on_reuse = on_reuse
        self._refs: list[int] = [0] * num_blocks
        # The list is circular through a sentinel whose index is num_blocks.
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._prev: list[int] = [num_blocks, *range(num_blocks)]
        self._num_free = num_blocks  # in the list
        self._num_used = 0
        self._num_beyond = 0  # in use, beyond the limit
        self._freed = [0] * num_blocks
        self._period = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated (cached ones included)."""
        return max(0, self._num_free - self._num_beyond)

    @property
    def num_used(self) -> int:
        """Blocks with references."""
        return self._num_used

    @property
    def num_beyond(self) -> int:
        """Blocks beyond the limit that are still in use."""
        return self._num_beyond

    def refs(self, block: int) -> int:
        """How many references a block has."""
        return self._refs[block]

    def allocate(self) -> int:
        """Take the least recently freed block and reference it once.

        Raises:
            MemoryError: no block is free. Callers check `num_free` first.
        """
        block = self._next[self.num_blocks]
        if block == self.num_blocks:
            raise MemoryError("no free KV block")
        self._unlink(block)
        self._refs[block] = 1
        self._num_used += 1
        if self._on_reuse is not None:
            self._on_reuse(block)
        return block

    def acquire(self, block: int) -> None:
        """Add a reference; a free block found in the prefix index is in use again."""
        if self._refs[block] == 0:
            self._unlink(block)
            self._num_used += 1
        self._refs[block] += 1

    def release(self, block: int, *, findable: bool) -> None:
        """Drop a reference. The last one frees the block, or retires it.

        Args:
            block: its id.
            findable: it is in the prefix index, so evict it late. A block beyond the limit is
                reported to `on_reuse`, as its content is lost.

        Raises:
            RuntimeError: the block has no references (a double free).
        """
        refs = self._refs[block]
        if refs <= 0:
            raise RuntimeError(f"double free of KV block {block}")
        self._refs[block] = refs - 1
        if refs == 1:
            self._num_used -= 1
            if block >= self.limit:
                self._num_beyond -= 1
                if findable and self._on_reuse is not None:
                    self._on_reuse(block)
                return
            sentinel = self.num_blocks
            after = self._prev[sentinel] if findable else sentinel
            self._link(block, after)
            self._freed[block] = self._period

    def set_limit(self, limit: int) -> None:
        """Limit the pool to its first blocks. Free blocks beyond the limit must not be in the
        prefix index. Those that come back are allocated before all others."""
        before, self.limit = self.limit, limit
        for block in range(limit, before):
            if self._refs[block] == 0:
                self._unlink(block)
        for block in range(limit - 1, before - 1, -1):
            if self._refs[block] == 0:
                self._link(block, self.num_blocks)
        self._num_beyond = sum(refs > 0 for refs in self._refs[limit:])

    def retired(self) -> list[int]:
        """Blocks beyond the limit that nobody uses, in ascending order."""
        return [block for block in range(self.limit, self.num_blocks) if not self._refs[block]]

    def put_in_place_of(self, block: int, other: int) -> None:
        """Let a free block take the place of another in the order of eviction; that one will be
        allocated next."""
        self._unlink(block)
        self._link(block, other)
        self._freed[block] = self._freed[other]
        self._unlink(other)
        self._link(other, self.num_blocks)

    def next_period(self) -> int:
        """A new period begins; returns the number of the one that ends, the first being 0."""
        self._period += 1
        return self._period - 1

    def freed_in(self, block: int) -> int:
        """The period in which a free block was last in use; 0 if it never was."""
        return self._freed[block]

    def reuse_first(self, blocks: Sequence[int]) -> None:
        """Hand out these free blocks before all others, in this order."""
        for block in reversed(blocks):
            self._unlink(block)
            self._link(block, self.num_blocks)

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self._num_free -= 1

    def _link(self, block: int, before: int) -> None:
        after = self._next[before]
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self._num_free += 1

    def free_blocks(self) -> Iterable[int]:
        """The free blocks, next to be reused first."""
        block = self._next[self.num_blocks]
        while block != self.num_blocks:
            yield block
            block = self._next[block]

    def check(self) -> None:
        """Verify the invariants; O(num_blocks).

        Raises:
            AssertionError: an invariant is violated (a bug in Tidemill).
        """
        seen = 0
        for block in self.free_blocks():
            seen += 1
            assert seen <= self.num_blocks, "the free list has a cycle"
            assert self._refs[block] == 0, f"free block {block} has {self._refs[block]} references"
            assert self._prev[self._next[block]] == block, f"block {block} is linked one way"
        assert seen == self._num_free, f"{seen} blocks in the free list, {self._num_free} counted"
        assert all(r >= 0 for r in self._refs), "a negative reference count"
        zero = sum(r == 0 for r in self._refs[: self.limit])
        assert zero == seen, f"{zero} blocks without references, {seen} in the free list"
        assert self._num_used == sum(r > 0 for r in self._refs), "blocks in use are miscounted"
        beyond = sum(r > 0 for r in self._refs[self.limit :])
        assert self._num_beyond == beyond, "blocks beyond the limit are miscounted"
