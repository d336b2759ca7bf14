"""Identifiers: unguessable, short, prefixed by what they name."""

from __future__ import annotations

import secrets
from collections import Counter
from contextvars import ContextVar
from hashlib import blake2b

from tidemill.base.clock import wall


class Decided:
    """What of an answer is otherwise drawn or read from a clock, decided by a key: two answers with
    equal ones have the same ids, as far as they draw them in the same order.

    Args:
        key: unguessable bytes.
        created: seconds since the epoch.
    """

    def __init__(self, key: bytes, created: float) -> None:
        self.key, self.created = key, created
        self._drawn: Counter[str] = Counter()

    def draw(self, prefix: str, nbytes: int) -> str:
        """The next hexadecimal digits for ids with this prefix."""
        text = f"{prefix}\0{self._drawn[prefix]}".encode()
        self._drawn[prefix] += 1
        return blake2b(text, key=self.key, digest_size=nbytes).hexdigest()


decided: ContextVar[Decided | None] = ContextVar("decided", default=None)
"""Of the answer that this task makes; None: nothing is."""


def _token_hex(prefix: str, nbytes: int) -> str:
    found = decided.get()
    return secrets.token_hex(nbytes) if found is None else found.draw(prefix, nbytes)


def created_at() -> float:
    """Seconds since the epoch when the answer that this task makes was begun."""
    found = decided.get()
    return wall() if found is None else found.created


def new_id(prefix: str) -> str:
    """Return `prefix` followed by 128 random bits in hexadecimal, for example ``chatcmpl-9f…``."""
    return f"{prefix}-{_token_hex(prefix, 16)}"


def new_underscored_id(prefix: str) -> str:
    """The same as OpenAI spells most of its ids, for example ``resp_9f…``."""
    return new_id(prefix).replace("-", "_")


def new_call_id() -> str:
    """Return an id for a tool call, spelled as OpenAI's are, for example ``call_5d1e…``."""
    return f"call_{_token_hex('call', 12)}"


def new_seed() -> int:
    """Draw a sampling seed: 53 random bits, so that a client whose JSON numbers are doubles
    (JavaScript, jq) reads it exactly and can send it again."""
    return int(_token_hex("seed", 8), 16) % 2**53
