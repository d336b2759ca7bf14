"""Follows what Tidemill targets have cached: `GET /admin/cache/changes`, asked again and again.

Often while a target has requests of this gateway or its cache changes, else as often as it is
probed. A target that does not say (an older one, or its key may not read it) has cached what it
was sent, presumably.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import msgspec

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.contract.cache import CacheNews
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.look import get
from tidemill.gateway.routing.health import State
from tidemill.gateway.targets import Target
from tidemill.gateway.wire.connection import Lost
from tidemill.gateway.wire.pool import Full

log = get_logger(__name__)

CHANGES = "/admin/cache/changes"

BUSY_SECONDS = 0.1
"""Between two questions while the cache changes."""

REFUSED_SECONDS = 60.0
"""After which a target that did not say is asked again: it may have been updated."""

MAX_BYTES = 64 << 20
"""Of an answer: the blocks of a cache of 50 million tokens."""


class _Model(msgspec.Struct):
    identity: str
    block_tokens: int
    news: CacheNews


class _Changes(msgspec.Struct):
    cursor: str = ""
    models: dict[str, _Model] = {}


class Refused(Exception):
    """The target does not say what it has cached."""


async def follow(fleet: Fleet, target: Target) -> None:
    """Follow a target until this is cancelled."""
    cursor = ""
    while True:
        seconds = fleet.config.routing.probe_seconds
        try:
            well = target.protocol is not None
            if fleet.follows and well and target.health.state(monotonic()) is State.CLOSED:
                cursor, changed = await ask(fleet, target, cursor)
                if changed or target.load.active:
                    seconds = min(BUSY_SECONDS, seconds)
        except (Lost, TimeoutError, Full):
            pass  # probes see whether it is down
        except Refused as error:
            log.warning("what target %s has cached is presumed: %s", target.name, error)
            fleet.announced.forget(target.name)
            cursor, seconds = "", max(REFUSED_SECONDS, seconds)
        except Exception:
            log.exception("target %s could not be followed", target.name)
        await asyncio.sleep(seconds)


async def ask(fleet: Fleet, target: Target, cursor: str) -> tuple[str, bool]:
    """Take what is new at a target.

    Args:
        fleet: that hears of it.
        target: whom to ask.
        cursor: of the answer before; empty: there was none.

    Returns:
        The cursor for the next time, and whether there was anything new.

    Raises:
        Refused, Lost, TimeoutError, Full: it does not say.
    """
    announced = fleet.announced
    if announced.blocks(target.name) is None:
        cursor = ""  # what it said was forgotten
    status, body = await get(target, f"{CHANGES}?cursor={quote(cursor)}", MAX_BYTES)
    if status in (401, 403):
        raise Refused(f"{CHANGES}: {status}: its key (key_env) needs the role admin")
    if status in (404, 405):
        raise Refused(f"it has no {CHANGES}: it is older than this gateway")
    if status != 200:
        return cursor, False
    try:
        found = msgspec.json.decode(body, type=_Changes)
    except msgspec.DecodeError:
        raise Refused(f"{CHANGES}: the answer is malformed") from None
    changed = False
    for name, model in found.models.items():
        news = model.news
        changed |= announced.told(
            target.name,
            name,
            model.identity,
            model.block_tokens,
            anew=news.anew,
            added=news.added,
            removed=news.removed,
            prompts=((one.request, one.leaf, one.blocks, one.tokens) for one in news.prompts),
        )
    announced.forget(target.name, but=found.models)
    return found.cursor, changed
