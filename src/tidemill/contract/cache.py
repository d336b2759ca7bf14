"""What an engine tells of its prefix cache to who follows it, see `memory.changes`."""

from __future__ import annotations

import msgspec

DIGEST_BYTES = 16
"""Of a block: a chained hash of its tokens and of all before it, see `memory.prefix`."""


class CachedPrompt(msgspec.Struct, frozen=True, array_like=True):
    """What a request's prompt became.

    Attributes:
        request: the request's id.
        leaf: digest of its last full block; empty: it has none.
        blocks: full blocks, from its begin to that one.
        tokens: of the prompt.
    """

    request: str
    leaf: bytes
    blocks: int
    tokens: int


class CacheNews(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is new in a cache.

    Attributes:
        cursor: what is asked for next time with it is what is new then.
        anew: `added` is everything there is, not what is new.
        added: of each block its digest and its parent's: `DIGEST_BYTES` each.
        removed: digests.
        prompts: that were computed; their blocks are among those added now or before.
    """

    cursor: str
    anew: bool = False
    added: bytes = b""
    removed: bytes = b""
    prompts: tuple[CachedPrompt, ...] = ()
