"""A model's state for people and programs: /readyz, /admin/models, `tidemill ps`."""

from __future__ import annotations

import math
from typing import Any

from tidemill.server.host.slot import Slot


def describe(slot: Slot) -> dict[str, Any]:
    """A model's state.

    Returns:
        name, aliases and `state` (``unloaded``, ``loading``, ``loaded``, ``asleep``,
        ``unloading``); `requests` that use it and those that are `waiting` for it; `pinned`,
        `keep_alive` seconds (None: for ever). Where known: `memory` that it needs at least,
        `progress` of its weights in [0, 1], `kv_bytes`, and the `error` of its last load. `away`:
        which engine computes its requests instead, and how many of them.
    """
    keep_alive = slot.expires_after
    found: dict[str, Any] = {
        "name": slot.name,
        "aliases": list(slot.hosted.aliases),
        "state": slot.state.value,
        "requests": slot.leases,
        "waiting": len(slot.waiters),
        "pinned": slot.hosted.pin,
        "keep_alive": None if math.isinf(keep_alive) else keep_alive,
    }
    if slot.need is not None:
        found["memory"] = slot.need.least
    if slot.progress is not None and slot.progress.total:
        found["progress"] = round(slot.progress.loaded / slot.progress.total, 4)
    if slot.loaded is not None:
        info = slot.loaded.served.info
        if (away := slot.loaded.away) is not None:
            found["away"] = {"at": away[0], "requests": away[1]}
        found |= {"weight_bytes": info.weight_bytes, "kv_bytes": info.kv_bytes}
    if slot.error is not None:
        found["error"] = slot.error.message
    return found
