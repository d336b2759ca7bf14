"""What becomes findable in the prefix cache, what is lost, and what prompts became: a log for who
follows a cache from outside, a gateway above all."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable

from tidemill.contract.cache import CachedPrompt, CacheNews
from tidemill.memory.prefix import BlockKey

MAX_EVENTS = 2**16
"""That are remembered for who comes late; who comes later is told everything."""

LOOKED_AT = 256
"""Blocks that only a tier below has, of which it is looked whether it still has them, each time
that somebody asks for news."""

_Event = BlockKey | bytes | CachedPrompt
"""A block is there from now on; the block of a digest is not any more; a prompt is computed."""


class CacheChanges:
    """See the module docstring. A block whose content a tier below the device keeps is there.

    Args:
        keys: of the blocks that are findable now.
        below: whether a tier below has the block of a digest.
    """

    def __init__(self, keys: Iterable[BlockKey], below: Callable[[bytes], bool]) -> None:
        self._parents = {key.digest: key.parent for key in keys}
        self._below = below
        self._lower: dict[bytes, None] = {}  # evicted from the device
        self._events: deque[_Event] = deque(maxlen=MAX_EVENTS)
        self._count = 0  # of all events ever
        self._name = secrets.token_hex(4)  # another engine's log is another one

    def published(self, key: BlockKey) -> None:
        """A block is findable."""
        self._lower.pop(key.digest, None)
        if key.digest not in self._parents:
            self._parents[key.digest] = key.parent
            self._add(key)

    def evicted(self, digest: bytes) -> None:
        """A block's content has left the device."""
        if self._below(digest):
            self._lower[digest] = None
        else:
            self._lost(digest)

    def prompt(self, request_id: str, keys: list[BlockKey], tokens: int) -> None:
        """A prompt is computed.

        Args:
            request_id: of its request.
            keys: of its full blocks.
            tokens: that it has.
        """
        self._add(CachedPrompt(request_id, keys[-1].digest if keys else b"", len(keys), tokens))

    def since(self, cursor: str) -> CacheNews:
        """What is new after the news of a cursor; everything there is, where that is not known any
        more, or was another cache's."""
        self._look_below()
        now = f"{self._name}-{self._count}"
        name, _, seen = cursor.partition("-")
        new = self._count - int(seen) if name == self._name and seen.isdecimal() else -1
        if not 0 <= new <= len(self._events):
            blocks = b"".join(digest + parent for digest, parent in self._parents.items())
            return CacheNews(now, anew=True, added=blocks)
        first = len(self._events) - new
        last: dict[bytes, bytes | None] = {}  # of a block that came and went, the last word
        prompts = []
        for place in range(first, len(self._events)):
            event = self._events[place]
            if isinstance(event, BlockKey):
                last[event.digest] = event.parent
            elif isinstance(event, bytes):
                last[event] = None
            else:
                prompts.append(event)
        added = b"".join(digest + parent for digest, parent in last.items() if parent is not None)
        removed = b"".join(digest for digest, parent in last.items() if parent is None)
        return CacheNews(now, added=added, removed=removed, prompts=tuple(prompts))

    def _look_below(self) -> None:
        for digest in list(self._lower)[:LOOKED_AT]:
            del self._lower[digest]
            if self._below(digest):
                self._lower[digest] = None  # the last one to be looked at again
            else:
                self._lost(digest)

    def _lost(self, digest: bytes) -> None:
        self._lower.pop(digest, None)
        if self._parents.pop(digest, None) is not None:
            self._add(digest)

    def _add(self, event: _Event) -> None:
        self._events.append(event)
        self._count += 1
