"""The states of KV blocks, for people who look at a cache."""

from __future__ import annotations

from tidemill.memory.pool import BlockPool
from tidemill.memory.prefix import PrefixIndex

USED, SHARED, CACHED, FREE = "u", "s", "c", "."
"""A letter for a block: held by one sequence; by several; by none, but a later prompt may find it;
neither."""


def block_map(pool: BlockPool, index: PrefixIndex, most: int) -> str:
    """The states of at most `most` blocks of a pool, at even distances, by their ids."""
    if pool.limit < 1 or most < 1:
        return ""
    step = -(-pool.limit // most)
    return "".join(_state(pool, index, block) for block in range(0, pool.limit, step))


def _state(pool: BlockPool, index: PrefixIndex, block: int) -> str:
    refs = pool.refs(block)
    if refs:
        return USED if refs == 1 else SHARED
    return CACHED if block in index else FREE
