"""PrefixIndex: full blocks found again by what they hold.

A full block's identity is a chained 128-bit hash: of the parent block's identity and its own
tokens. The chain starts from a root that covers everything else the content depends on (tenant
salt, weights, KV type, adapter, soft-prompt and media digests), so that equal identities mean equal
KV. A hit is verified, not trusted: tokens and parent are compared.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

KEY_BYTES = 16
_TOKEN_BITS = 32
# Blocks that follow the same one are many where sequences part; the latest of them are looked at.
_MOST_LOOKED_AT = 32


class BlockKey(NamedTuple):
    """Identity of a full block.

    Attributes:
        digest: 128-bit chained hash.
        parent: the previous block's digest, or the root's.
        tokens: the block's token ids, packed (compared on a hit).
    """

    digest: bytes
    parent: bytes
    tokens: bytes


def root_digest(
    *,
    salt: str = "",
    weights: str = "",
    kv_dtype: str = "",
    adapter: str | None = None,
    media: Sequence[bytes] = (),
) -> bytes:
    """Where the chain of a sequence starts: what its KV depends on besides its tokens.

    Args:
        salt: separates tenants.
        weights: digest of the loaded weights (quantization included).
        kv_dtype: element type of the cache.
        adapter: name and digest of the adapter, or None.
        media: digests of soft prompts and media, in order of position.
    """
    hasher = hashlib.blake2b(digest_size=KEY_BYTES, person=b"tidemill-kv-root")
    parts = (salt.encode(), weights.encode(), kv_dtype.encode(), (adapter or "").encode(), *media)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def block_key(parent: bytes, token_ids: Sequence[int]) -> BlockKey:
    """Identity of the full block that holds `token_ids` after `parent`."""
    tokens = pack(token_ids)
    digest = hashlib.blake2b(parent + tokens, digest_size=KEY_BYTES).digest()
    return BlockKey(digest, parent, tokens)


def pack(token_ids: Sequence[int]) -> bytes:
    """Token ids as `BlockKey.tokens` has them."""
    return array("i", token_ids).tobytes()


def _shared(a: bytes, b: bytes) -> int:
    """How many tokens two packed runs begin with in common."""
    size = min(len(a), len(b))
    differing = int.from_bytes(a[:size], "little") ^ int.from_bytes(b[:size], "little")
    if not differing:
        return size * 8 // _TOKEN_BITS
    return ((differing & -differing).bit_length() - 1) // _TOKEN_BITS


class PrefixIndex:
    """Identity -> block of one cache group.

    Invariant: `_blocks` and `_keys` are inverse to each other; a block is under one key at most,
    and a key names one block at most (whoever computes the same content a second time keeps an
    anonymous copy). `_after` has the keys by their parents, in the order in which they came.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, BlockKey] = {}
        self._after: dict[bytes, dict[BlockKey, None]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def find(self, key: BlockKey) -> int | None:
        """The block that holds this content, verified; None if there is none."""
        block = self._blocks.get(key.digest)
        if block is None:
            return None
        held = self._keys[block]
        return block if held.tokens == key.tokens and held.parent == key.parent else None

    def partial_match(self, parent: bytes, tokens: bytes) -> tuple[BlockKey, int] | None:
        """Of the blocks after `parent` the one that begins with the most of `tokens`.

        Args:
            parent: the previous block's digest, or the root's.
            tokens: packed, a block's at most.

        Returns:
            Its key, and how many tokens are the same; None if not even the first is.
        """
        best = None
        for key in islice(reversed(self._after.get(parent, {})), _MOST_LOOKED_AT):
            count = _shared(key.tokens, tokens)
            if count > (best[1] if best else 0):
                best = key, count
        return best

    def add(self, key: BlockKey, block: int) -> bool:
        """Make a block findable; False if this content (or this block) already is."""
        if key.digest in self._blocks or block in self._keys:
            return False
        self._blocks[key.digest] = block
        self._keys[block] = key
        self._after.setdefault(key.parent, {})[key] = None
        return True

    def forget(self, block: int) -> BlockKey | None:
        """The block's content is about to go: what it was. Unknown blocks are ignored."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._blocks[key.digest]
            siblings = self._after[key.parent]
            del siblings[key]
            if not siblings:
                del self._after[key.parent]
        return key

    def check(self) -> None:
        """Verify the invariant.

        Raises:
            AssertionError: it does not hold (a defect of ours).
        """
        assert len(self._blocks) == len(self._keys), "the index's two sides differ in size"
        for block, key in self._keys.items():
            assert self._blocks.get(key.digest) == block, f"block {block} is not under its key"
            assert key in self._after[key.parent], f"block {block} is not among its siblings"
        followers = sum(map(len, self._after.values()))
        assert followers == len(self._keys), "a key is left among those of its parent"
