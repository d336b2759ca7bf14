"""Where requests that have something in common meet, although nobody remembers them.

Several gateways, and one that was restarted, agree on it without a word: each target's weight for a
key is a hash of both, and the heaviest one is the key's home (rendezvous hashing). A target that
comes or goes moves only its own keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

_WEIGHT = 0.03


def home(names: Sequence[str], key: bytes) -> str | None:
    """The name of a key's home; None for an empty key, or where there is nothing to choose."""
    if not key or len(names) < 2:
        return None
    seed = blake2b(key, digest_size=16).digest()
    return max(names, key=lambda name: blake2b(name.encode(), key=seed, digest_size=8).digest())


@dataclass(slots=True)
class Trust:
    """How much of a prompt that this gateway has sent nowhere its home has cached all the same,
    since other gateways sent it there: of prompts that came before, none; of one that is alone,
    none either. Learnt from what answers say.

    Attributes:
        share: of such prompts; much at first, so that gateways that start together agree.
    """

    share: float = 0.9

    def learn(self, cached: int, presumable: int) -> None:
        """Such a prompt was answered at its home.

        Args:
            cached: tokens that were found there.
            presumable: tokens that could have been.
        """
        found = min(1.0, cached / max(1, presumable))
        self.share += _WEIGHT * (found - self.share)
