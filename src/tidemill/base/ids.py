"""Identifiers: unguessable, short, prefixed by what they name."""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    """Return `prefix` followed by 128 random bits in hexadecimal, for example ``chatcmpl-9f…``."""
    return f"{prefix}-{secrets.token_hex(16)}"


def new_underscored_id(prefix: str) -> str:
    """The same as OpenAI spells most of its ids, for example ``resp_9f…``."""
    return new_id(prefix).replace("-", "_")


def new_call_id() -> str:
    """Return an id for a tool call, spelled as OpenAI's are, for example ``call_5d1e…``."""
    return f"call_{secrets.token_hex(12)}"


def new_seed() -> int:
    """Draw a sampling seed: 53 random bits, so that a client whose JSON numbers are doubles
    (JavaScript, jq) reads it exactly and can send it again."""
    return secrets.randbits(53)
