"""Why no more of a prompt was found in the prefix cache: asked once per request, at its admission.

What another tenant has in the cache is looked at as well. It changes nothing of what is computed,
and is for administrators alone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from tidemill.contract.history import Miss, PrefixLookup
from tidemill.memory.lease import KVMemory, PartialMatch
from tidemill.memory.prefix import pack
from tidemill.sched.sequence import Sequence

if TYPE_CHECKING:
    from tidemill.sched.state import State

MAX_ROOTS = 64
"""Combinations of tenant and adapter, the latest ones, whose prefixes are compared."""


class Roots:
    """The latest roots of requests' hash chains, and the salt of each. What else they depend on,
    besides the model, are adapters."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def note(self, digest: bytes, salt: str) -> None:
        """A request with this root has come."""
        self._known[digest] = salt
        self._known.move_to_end(digest)
        if len(self._known) > MAX_ROOTS:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)

    def others(self, digest: bytes) -> list[tuple[bytes, str]]:
        """All but this one, the latest first, and their salts."""
        return [(other, salt) for other, salt in reversed(self._known.items()) if other != digest]


def look(
    state: State,
    seq: Sequence,
    found: int,
    partial_match: PartialMatch | None,
) -> PrefixLookup:
    """What was found of a sequence's known tokens, and why not more.

    Args:
        state: the scheduler's, before the sequence is started.
        seq: it is about to be admitted, and has no blocks.
        found: full blocks that were found.
        partial_match: a block after them that begins alike, if it is used.
    """
    memory = state.memory
    cached = found * memory.block_size + (partial_match.tokens if partial_match else 0)
    miss, known = _miss(state, seq, found, partial_match)
    virtual = seq.owner.virtual_tokens
    of_prompt = max(0, min(cached, seq.prompt_len) - virtual)
    return PrefixLookup(of_prompt, miss, max(0, cached - virtual), max(0, known - virtual))


def _miss(
    state: State, seq: Sequence, found: int, partial_match: PartialMatch | None
) -> tuple[Miss, int]:
    memory, size = state.memory, state.memory.block_size
    if not memory.prefix_caching:
        return Miss.OFF, 0
    if seq.needs_every_position:
        return Miss.EVERY_POSITION, 0
    full = (len(seq.tokens) - 1) // size
    start = found * size
    rest = seq.tokens[start : min(start + size, len(seq.tokens) - 1)]
    if partial_match is not None and partial_match.tokens >= len(rest):
        return Miss.NONE, 0
    if found >= full and not rest:
        return Miss.NONE, 0
    parent = seq.keys_up_to(found, size)[-1].digest if found else seq.owner.root
    if found < full:
        key = seq.keys_up_to(found + 1, size)[found]
        if memory.snapshots is not None and len(memory.held([key])) == 1:
            return Miss.STATE, 0
        if memory.evicted is not None and key.digest in memory.evicted:
            return Miss.EVICTED, 0
        if _is_computed_now(state, seq, start, rest):
            return Miss.IN_FLIGHT, 0
    media = seq.media_within(start, start + size)
    alike = memory.alike(parent, rest, media)
    if alike and partial_match is None and alike >= len(rest):
        # Few tokens are not worth a copy, and a recurrent model has no states within blocks.
        usable = memory.partial_match(parent, rest, media) is not None
        return (Miss.NO_ROOM if usable else Miss.SHORT), alike
    if alike:
        return Miss.PARTED, alike
    if found >= full:
        return Miss.SHORT, 0
    if found:
        return (Miss.PARTED if memory.has_after(parent) else Miss.LONGER), 0
    return _elsewhere(memory, state.roots, seq, rest) or Miss.NEW, 0


def _is_computed_now(state: State, seq: Sequence, start: int, tokens: list[int]) -> bool:
    """Another sequence with the same prefix runs, and its block is not full yet."""
    end = start + len(tokens)
    return any(
        other.owner.root == seq.owner.root
        and other.computed < end
        and other.tokens[:end] == seq.tokens[:end]
        for other in state.running
        if len(other.tokens) >= end and other is not seq
    )


def _elsewhere(memory: KVMemory, roots: Roots, seq: Sequence, tokens: list[int]) -> Miss | None:
    """The prompt's beginning is cached under another root."""
    mine = seq.owner.request.cache_salt
    packed = pack(tokens)
    for digest, salt in roots.others(seq.owner.root):
        match = memory.indices[0].partial_match(digest, packed)
        if match is not None and match[1] >= len(tokens):
            return Miss.OTHER_ADAPTER if salt == mine else Miss.OTHER_SALT
    return None
