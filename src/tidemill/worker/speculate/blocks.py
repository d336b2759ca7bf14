"""KV blocks of a drafter that keeps a cache of its own.

Full blocks of known tokens stay findable by their content until they are reused, so that a prompt's
beginning is read once. The chain of hashes needs no salt: how far a sequence may look is bounded by
what the model's own cache found for it (`Drafter.add`), and that is separated by tenants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tidemill.memory.pool import BlockPool
from tidemill.worker.speculate.drafter import Int32

_ROOT = b"\0" * 16


def block_keys(tokens: Int32, size: int, known: Sequence[bytes] = ()) -> list[bytes]:
    """The key of each full block of tokens: a hash of its tokens and of the key before it.

    Args:
        tokens: int32.
        size: tokens per block.
        known: keys of the first blocks.
    """
    keys = [*known]
    for i in range(len(keys), len(tokens) // size):
        before = keys[-1] if keys else _ROOT
        block = tokens[i * size : (i + 1) * size].tobytes()
        keys.append(hashlib.blake2b(before + block, digest_size=16).digest())
    return keys


class DraftBlocks:
    """The blocks, and an index of their contents.

    Args:
        count: blocks.
    """

    def __init__(self, count: int) -> None:
        self._pool = BlockPool(count, self._drop)
        self._block: dict[bytes, int] = {}
        self._key: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, those that are only findable included."""
        return self._pool.num_free

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks of the first keys, as far as they are there; in use from now on."""
        found: list[int] = []
        for key in keys:
            block = self._block.get(key)
            if block is None:
                break
            self._pool.acquire(block)
            found.append(block)
        return found

    def take(self, count: int) -> list[int]:
        """New blocks; all or none."""
        return [self._pool.allocate() for _ in range(count)] if count <= self.num_free else []

    def publish(self, block: int, key: bytes) -> None:
        """A full block can be found; of two with the same content the first one."""
        if key not in self._block and block < self._pool.limit:
            self._block[key] = block
            self._key[block] = key

    def release(self, blocks: Sequence[int]) -> None:
        """A sequence no longer uses its blocks; the last ones are reused first."""
        for block in reversed(blocks):
            self._pool.release(block, findable=block in self._key)

    def limit(self, count: int) -> None:
        """Use the first blocks alone; others are given up as their sequences end."""
        for block in [b for b in self._key if b >= count]:
            self._drop(block)
        self._pool.set_limit(min(count, self._pool.num_blocks))

    def forget(self) -> None:
        """What blocks hold is lost."""
        for block in [*self._key]:
            self._drop(block)

    def _drop(self, block: int) -> None:
        key = self._key.pop(block, None)
        if key is not None:
            del self._block[key]
