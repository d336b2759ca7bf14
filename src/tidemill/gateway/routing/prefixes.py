"""Which targets have a prompt's beginning cached, as far as one can tell from what they were sent.

A prompt is cut in blocks of bytes; a block's key is a hash of it and of the key before it, so that
equal keys mean equal beginnings. Each target has the keys that it was sent, the least recently used
ones forgotten first, from the end of a prompt on: what is known of a prompt is always a beginning
of it. The keys are hashes of this process; collisions cost a wrong guess and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_BYTES = 256
"""About 64 tokens of English."""

DEFAULT_BLOCKS = 1 << 14
"""Of a target of which nothing else is known: about a million tokens."""


def keys_of(salt: str, prompt: bytes, block: int = BLOCK_BYTES) -> list[int]:
    """Keys of a prompt's whole blocks.

    Args:
        salt: prompts with different ones share nothing (the model, the tenant).
        prompt: its bytes.
        block: bytes of a block.
    """
    found, key = [], hash(salt)
    for begin in range(0, len(prompt) - block + 1, block):
        key = hash((key, prompt[begin : begin + block]))
        found.append(key)
    return found


class Prefixes:
    """What each target was sent.

    Args:
        blocks: how many of one target are kept; its cache's size.
    """

    def __init__(self, blocks: int = DEFAULT_BLOCKS) -> None:
        self._blocks = blocks
        self._targets: dict[str, OrderedDict[int, None]] = {}
        self._sizes: dict[str, int] = {}

    def resize(self, target: str, blocks: int) -> None:
        """A target's cache is known to hold so many blocks."""
        self._sizes[target] = max(1, blocks)
        self._trim(target)

    def matched(self, target: str, keys: Sequence[int]) -> int:
        """How many of a prompt's first blocks a target has presumably cached."""
        kept = self._targets.get(target)
        if not kept or not keys or keys[0] not in kept:
            return 0
        low, high = 1, len(keys)  # keys[:low] are kept; what is kept is a beginning
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in kept:
                low = middle
            else:
                high = middle - 1
        return low

    def note(self, target: str, keys: Sequence[int]) -> None:
        """A target is sent a prompt."""
        kept = self._targets.setdefault(target, OrderedDict())
        for key in reversed(keys):  # the first block is the last to be forgotten
            kept[key] = None
            kept.move_to_end(key)
        self._trim(target)

    def forget(self, target: str) -> None:
        """A target has lost its cache: it has restarted."""
        self._targets.pop(target, None)

    def _trim(self, target: str) -> None:
        kept = self._targets.get(target)
        if kept is not None:
            most = self._sizes.get(target, self._blocks)
            while len(kept) > most:
                kept.popitem(last=False)
