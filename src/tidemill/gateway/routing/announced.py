"""What targets have cached, as they say themselves.

An engine announces digests of blocks of tokens; a gateway has no tokenizer and sees texts, whose
blocks have keys (`prefixes`). They meet in what a prompt became: the target tells, of a request
that the gateway gave it, the last block of the prompt, and from that block's parents the gateway
knows them all. Each key of the prompt then *ends in* one of these blocks: the one as far in the
prompt's tokens as the key is in its bytes. That is a guess where tokens are not equally long; if a
later prompt has the key and not the block, the key ends in an earlier one from then on.

What is exact: whether a target has a block. Digests are chained hashes of all tokens before, of the
model and of the tenant's salt, alike at each engine of one identity; so a prompt that one target
computed is found at every other that has its blocks, whoever sent it there.

Until a target has told what a request's prompt became, it presumably has it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

DIGEST_BYTES = 16

MOST_ENDS = 1 << 17
"""Keys of one identity whose blocks are remembered: about 8 million tokens."""

GRACE_SECONDS = 3.0
"""For which a request that has ended is presumed to have its prompt cached, if nothing was told."""

Prompt = tuple[str, bytes, int, int]
"""Of a request: its id, the digest of its last full block, how many there are, and its tokens."""


@dataclass(frozen=True, slots=True)
class _End:
    """Where a key ends: in the block of a digest, so many blocks from the prompt's begin."""

    digest: bytes
    blocks: int


@dataclass(slots=True)
class _Sent:
    keys: Sequence[int]
    end: float  # part of the prompt's bytes that a key has, by the number of keys


@dataclass(slots=True)
class _Cache:
    """Of one model at one target.

    Attributes:
        parents: of each block that is there.
        sent: requests whose prompts are not told yet.
        coming: how many of these have a key.
        ended: of `sent` those that have ended, and until when they count.
    """

    identity: str
    block_tokens: int
    parents: dict[bytes, bytes] = field(default_factory=dict)
    sent: dict[str, _Sent] = field(default_factory=dict)
    coming: dict[int, int] = field(default_factory=dict)
    ended: deque[tuple[float, str]] = field(default_factory=deque)


class Announced:
    """See the module docstring. A cache is named by its target and the model there.

    Args:
        key_tokens: of a key, where nothing else is known.
        most_ends: see `MOST_ENDS`.
    """

    def __init__(self, key_tokens: int, most_ends: int = MOST_ENDS) -> None:
        self._key_tokens = key_tokens
        self._most_ends = most_ends
        self._caches: dict[str, dict[str, _Cache]] = {}  # by target and model
        self._ends: dict[str, OrderedDict[int, _End]] = {}  # by identity

    def blocks(self, target: str) -> int | None:
        """How many blocks a target has; None: it does not say."""
        caches = self._caches.get(target)
        return sum(len(one.parents) for one in caches.values()) if caches else None

    def awaited(self, target: str) -> int:
        """Requests of which a target has not told yet what their prompts became."""
        return sum(len(one.sent) for one in self._caches.get(target, {}).values())

    def forget(self, target: str, but: Container[str] = ()) -> None:
        """A target does not say any more what it has; of its models but some."""
        caches = self._caches.get(target, {})
        for model in [one for one in caches if one not in but]:
            del caches[model]

    def _cache(self, target: str, model: str) -> _Cache | None:
        caches = self._caches.get(target)
        if not caches:
            return None
        if len(caches) == 1:  # by another name, or with an adapter
            return next(iter(caches.values()))
        return caches.get(model)

    # -- what a target says ----------------------------------------------------------------------

    def told(
        self,
        target: str,
        model: str,
        identity: str,
        block_tokens: int,
        *,
        anew: bool,
        added: bytes,
        removed: bytes,
        prompts: Iterable[Prompt],
    ) -> bool:
        """A target says what is new.

        Args:
            target, model: of the cache.
            identity: of the model: equal digests are equal blocks.
            block_tokens: of a block.
            anew: `added` is all that is there.
            added: digests of blocks, each with its parent's after it.
            removed: digests.
            prompts: that were computed.

        Returns:
            Whether anything is.
        """
        caches = self._caches.setdefault(target, {})
        cache = caches.get(model)
        if cache is None or (cache.identity, cache.block_tokens) != (identity, block_tokens):
            cache = caches[model] = _Cache(identity, block_tokens)
        elif anew:
            cache.parents.clear()
        both = 2 * DIGEST_BYTES
        for at in range(0, len(added) - both + 1, both):
            cache.parents[added[at : at + DIGEST_BYTES]] = added[at + DIGEST_BYTES : at + both]
        for at in range(0, len(removed) - DIGEST_BYTES + 1, DIGEST_BYTES):
            cache.parents.pop(removed[at : at + DIGEST_BYTES], None)
        some = False
        for request, leaf, blocks, tokens in prompts:
            some = True
            self._became(cache, request, leaf, blocks, tokens)
        return some or bool(added or removed)

    def _became(self, cache: _Cache, request: str, leaf: bytes, blocks: int, tokens: int) -> None:
        sent = self._forget_sent(cache, request)
        if sent is None:
            return  # another gateway's, or a client's own
        chain = [b""] * blocks
        digest = leaf
        for place in range(blocks - 1, -1, -1):
            chain[place] = digest
            found = cache.parents.get(digest)
            if found is None:
                return  # a block of it has gone since
            digest = found
        ends = self._ends.setdefault(cache.identity, OrderedDict())
        before = _End(b"", 0)
        for number, key in enumerate(sent.keys, 1):
            known = ends.get(key)
            if known is None:
                place = min(blocks, int(number * sent.end * tokens) // cache.block_tokens)
                known = _End(chain[place - 1], place) if place > before.blocks else before
            elif not (0 < known.blocks <= blocks and chain[known.blocks - 1] == known.digest):
                known = before
            ends[key] = before = known
            ends.move_to_end(key)
        while len(ends) > self._most_ends:
            ends.popitem(last=False)

    # -- what it is sent -------------------------------------------------------------------------

    def note(
        self, target: str, model: str, request: str, keys: Sequence[int], prompt: float
    ) -> bool:
        """A target is sent a prompt.

        Args:
            target, model: of the cache.
            request: its id.
            keys: of the prompt's whole blocks.
            prompt: how long it is, in such blocks.

        Returns:
            False: the target does not say what it has.
        """
        cache = self._cache(target, model)
        if cache is None:
            return False
        self._forget_sent(cache, request)
        cache.sent[request] = _Sent(keys, 1 / max(1.0, prompt))
        for key in keys:
            cache.coming[key] = cache.coming.get(key, 0) + 1
        return True

    def ended(self, target: str, model: str, request: str, now: float) -> None:
        """A request is answered, or has failed."""
        cache = self._cache(target, model)
        if cache is not None and request in cache.sent:
            cache.ended.append((now + GRACE_SECONDS, request))

    def matched(self, target: str, model: str, keys: Sequence[int], now: float) -> int | None:
        """How many tokens of a prompt's begin a target has cached; None: it does not say."""
        cache = self._cache(target, model)
        if cache is None:
            return None
        while cache.ended and cache.ended[0][0] <= now:
            self._forget_sent(cache, cache.ended.popleft()[1])
        ends: Mapping[int, _End] = self._ends.get(cache.identity, {})
        if not keys or not self._has(cache, ends.get(keys[0]), keys[0]):
            return 0
        low, high = 1, len(keys)  # of what is used together, the end is evicted first
        while low < high:
            middle = (low + high + 1) // 2
            if self._has(cache, ends.get(keys[middle - 1]), keys[middle - 1]):
                low = middle
            else:
                high = middle - 1
        end = ends.get(keys[low - 1])
        return low * self._key_tokens if end is None else end.blocks * cache.block_tokens

    @staticmethod
    def _has(cache: _Cache, end: _End | None, key: int) -> bool:
        if end is not None and end.digest in cache.parents:
            return True
        return key in cache.coming

    @staticmethod
    def _forget_sent(cache: _Cache, request: str) -> _Sent | None:
        sent = cache.sent.pop(request, None)
        for key in () if sent is None else sent.keys:
            left = cache.coming[key] - 1
            if left:
                cache.coming[key] = left
            else:
                del cache.coming[key]
        return sent
