"""Which route of a target answers a route of a client, where they speak different dialects."""

from __future__ import annotations

from tidemill.gateway.wire.kinds import CHAT, MESSAGES, Kind

_PAIRS = {CHAT: MESSAGES, MESSAGES: CHAT}


def translated(kind: Kind, path: str) -> str | None:
    """The target's route for one that it does not serve itself; None: there is none."""
    other = _PAIRS.get(path)
    return other if other is not None and kind.serves(other) else None
