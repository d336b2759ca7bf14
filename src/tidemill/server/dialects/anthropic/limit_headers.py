"""Anthropic's headers of what is left of a client's limits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.server.dialects.limit_headers import Fields, warnings

if TYPE_CHECKING:
    from tidemill.server.quotas.standing import Standing


def anthropic_headers(standing: Standing) -> Fields:
    """``anthropic-ratelimit-*``; a reset is a time (RFC 3339)."""
    found: Fields = []
    for unit, left in (("requests", standing.requests), ("tokens", standing.tokens)):
        if left is None:
            continue
        reset = datetime.fromtimestamp(standing.wall + left.reset, UTC)
        found += [
            (f"anthropic-ratelimit-{unit}-limit", str(left.limit)),
            (f"anthropic-ratelimit-{unit}-remaining", str(left.remaining)),
            (f"anthropic-ratelimit-{unit}-reset", f"{reset:%Y-%m-%dT%H:%M:%SZ}"),
        ]
    return found + warnings(standing.warnings)
