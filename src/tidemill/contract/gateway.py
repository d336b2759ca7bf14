"""What servers and the gateways in front of them agree on."""

from __future__ import annotations

PROTOCOL = 1
"""Of `GET /load`, `cache_salt`, seeds and headers between a gateway and a server. A change that an
older side would misread raises it."""


def interoperate(one: int, other: int) -> bool:
    """Whether two sides may talk: versions one apart do, so that either is updated first. 0: a
    server that does not say."""
    return abs(one - other) <= 1
