"""PrefixIndex: the prefix cache's lookup of full blocks by content.

A full block's key is a chained 128-bit hash of the parent block's key, its own tokens, and the
digests of media (images, soft prompts) whose embeddings begin to replace its tokens'. The chain
starts from a root that covers what the whole sequence depends on (tenant salt, weights, KV type,
adapter), so that equal keys mean equal KV. A medium changes the key of the block it begins in and,
over the chain, of all later ones; the prefix before it stays shared. Every hit is verified: tokens,
media and parent are compared.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

# Position of the first token replaced, and the digest of what replaces it and those after it.
Media = tuple[tuple[int, bytes], ...]

KEY_BYTES = 16
_TOKEN_BITS = 32
# Where sequences diverge, a block has many successors; only the latest of them are compared.
_MOST_LOOKED_AT = 32


class BlockKey(NamedTuple):
    """Identity of a full block.

    Attributes:
        digest: 128-bit chained hash.
        parent: the previous block's digest, or the root's.
        tokens: the block's token ids, packed (compared on a hit).
        media: media that begin in the block, by position in it.
    """

    digest: bytes
    parent: bytes
    tokens: bytes
    media: Media = ()


def root_digest(
    *,
    salt: str = "",
    weights: str = "",
    kv_dtype: str = "",
    adapter: str | None = None,
) -> bytes:
    """The root of a sequence's hash chain: what its KV depends on at every position.

    Args:
        salt: separates tenants.
        weights: digest of the loaded weights (quantization included).
        kv_dtype: element type of the cache.
        adapter: identity of the adapters that apply from position 0 on, or None.
    """
    hasher = hashlib.blake2b(digest_size=KEY_BYTES, person=b"tidemill-kv-root")
    parts = (salt.encode(), weights.encode(), kv_dtype.encode(), (adapter or "").encode())
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


def block_key(parent: bytes, token_ids: Sequence[int], media: Media = ()) -> BlockKey:
    """Identity of the full block that holds `token_ids` after `parent`.

    Args:
        parent: the previous block's digest, or the root's.
        token_ids: the block's; placeholders where media replace them.
        media: media that begin in the block, by position in it, ascending.
    """
    return packed_key(parent, pack(token_ids), media)


def packed_key(parent: bytes, tokens: bytes, media: Media = ()) -> BlockKey:
    """As `block_key`, with packed tokens."""
    content = parent + tokens
    for position, digest in media:
        content += position.to_bytes(4, "little") + len(digest).to_bytes(4, "little") + digest
    return BlockKey(hashlib.blake2b(content, digest_size=KEY_BYTES).digest(), parent, tokens, media)


def media_within(media: Media, start: int, end: int) -> Media:
    """The media that begin from `start` to `end` (exclusive), by position after `start`."""
    return tuple((at - start, digest) for at, digest in media if start <= at < end)


def pack(token_ids: Sequence[int]) -> bytes:
    """Token ids in the packed form of `BlockKey.tokens`."""
    return array("i", token_ids).tobytes()


def _shared(a: bytes, b: bytes) -> int:
    """The length in tokens of the common prefix of two packed runs."""
    size = min(len(a), len(b))
    differing = int.from_bytes(a[:size], "little") ^ int.from_bytes(b[:size], "little")
    if not differing:
        return size * 8 // _TOKEN_BITS
    return ((differing & -differing).bit_length() - 1) // _TOKEN_BITS


def _first_difference(a: Media, b: Media) -> int:
    """The first position in a block at which one medium begins that is not in both; `a != b`."""
    return min(position for position, _ in {*a} ^ {*b})


class PrefixIndex:
    """Identity -> block of one cache group.

    Invariant: `_blocks` and `_keys` are inverse to each other. A block has at most one key, and a
    key at most one block; a second block with the same content is not indexed. `_after` has the
    keys by parent, in order of insertion.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, BlockKey] = {}
        self._after: dict[bytes, dict[BlockKey, None]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def has(self, digest: bytes) -> bool:
        """Whether some block has this digest."""
        return digest in self._blocks

    def find(self, key: BlockKey) -> int | None:
        """The block with this content, verified; None without one."""
        block = self._blocks.get(key.digest)
        if block is None:
            return None
        return block if self._keys[block] == key else None

    def partial_match(
        self, parent: bytes, tokens: bytes, media: Media = ()
    ) -> tuple[BlockKey, int] | None:
        """Of the blocks after `parent` the one that begins with the most of `tokens`.

        Args:
            parent: the previous block's digest, or the root's.
            tokens: packed, a block's at most.
            media: media that begin among them, by position in the block.

        Returns:
            Its key, and how many tokens are the same, media included; None if not even the first
            is.
        """
        best = None
        for key in islice(reversed(self._after.get(parent, {})), _MOST_LOOKED_AT):
            count = _shared(key.tokens, tokens)
            if key.media != media:
                count = min(count, _first_difference(key.media, media))
            if count > (best[1] if best else 0):
                best = key, count
        return best

    def has_after(self, parent: bytes) -> bool:
        """Some block follows the one with this digest (or the root)."""
        return parent in self._after

    def add(self, key: BlockKey, block: int) -> bool:
        """Make a block findable; False if this content (or this block) already is."""
        if key.digest in self._blocks or block in self._keys:
            return False
        self._blocks[key.digest] = block
        self._keys[block] = key
        self._after.setdefault(key.parent, {})[key] = None
        return True

    def forget(self, block: int) -> BlockKey | None:
        """Remove a block whose content is evicted; returns its key, or None if not indexed."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._blocks[key.digest]
            siblings = self._after[key.parent]
            del siblings[key]
            if not siblings:
                del self._after[key.parent]
        return key

    def blocks(self) -> list[int]:
        """All blocks that are findable."""
        return list(self._keys)

    def key_of(self, block: int) -> BlockKey:
        """The key of a findable block."""
        return self._keys[block]

    def move(self, block: int, target: int) -> None:
        """Another block, which has no key, has this block's content from now on."""
        key = self._keys[target] = self._keys.pop(block)
        self._blocks[key.digest] = target

    def check(self) -> None:
        """Verify the invariant.

        Raises:
            AssertionError: it is violated (a bug in Tidemill).
        """
        assert len(self._blocks) == len(self._keys), "the index's two sides differ in size"
        for block, key in self._keys.items():
            assert self._blocks.get(key.digest) == block, f"block {block} is not under its key"
            assert key in self._after[key.parent], f"block {block} is not among its siblings"
        followers = sum(map(len, self._after.values()))
        assert followers == len(self._keys), "a key is left among those of its parent"
