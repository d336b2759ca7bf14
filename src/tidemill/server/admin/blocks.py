"""GET /admin/blocks: the KV caches of the models, as maps of their blocks."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import TidemillError
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import ADMINS, Endpoint
from tidemill.server.host.slot import Loaded
from tidemill.server.transport.pieces import json_response


async def blocks(context: ServerContext, request: Request) -> Response:
    """Of each loaded model, `cells`: a letter for each block of its KV cache (of a large one, for
    evenly many): `u` held by one sequence, `s` by several, `c` free, with a prefix that a later
    prompt may find, `.` free. `used`, `shared` and `cached` are numbers of blocks that follow from
    the letters; shared ones count as used, too."""
    loaded = {slot.name: slot.loaded for slot in context.host.slots if slot.loaded is not None}
    maps = await asyncio.gather(*map(_map_of, loaded.values()))
    found = zip(loaded, maps, strict=True)
    return json_response({"models": [{"model": name, **one} for name, one in found if one]})


async def _map_of(loaded: Loaded) -> dict[str, Any] | None:
    try:
        memory = await loaded.block_map()
    except TidemillError:
        return None  # an engine that is being replaced
    if memory is None or not memory.kv_map:
        return None
    cells = memory.kv_map
    each = memory.kv_blocks / len(cells)
    used, shared, cached = (cells.count(state) for state in "usc")
    return {
        "blocks": memory.kv_blocks,
        "used": round((used + shared) * each),
        "shared": round(shared * each),
        "cached": round(cached * each),
        "cells": cells,
    }


ENDPOINTS = (Endpoint("GET", "/admin/blocks", blocks, roles=ADMINS),)
