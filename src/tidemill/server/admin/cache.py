"""GET /admin/cache/changes: which blocks the prefix caches have, for gateways that follow them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import TidemillError
from tidemill.contract.cache import CachedPrompt, CacheNews
from tidemill.server.context import ServerContext
from tidemill.server.dialects.dialect import ADMINS, Endpoint
from tidemill.server.host.request_names import RequestNames
from tidemill.server.host.slot import Loaded
from tidemill.server.transport.pieces import json_response


async def changes(context: ServerContext, request: Request) -> Response:
    """What is new in the prefix cache of each loaded model since the answer that `cursor` is of.

    `cursor`: of this answer. Of each model `identity`: blocks of models with equal ones are alike;
    `block_tokens`, and `news`: see `contract.cache`, bytes as base64, without `cursor`. A prompt's
    `request` is what its client called it (`X-Request-ID`).
    """
    if context.followed is None:
        context.followed = RequestNames()
    before = _cursors(request.query_params.get("cursor", ""))
    loaded = [slot.loaded for slot in context.host.slots if slot.loaded is not None]
    loaded = [one for one in loaded if one.served.pipeline is None]
    found = await asyncio.gather(*(_news(one, before) for one in loaded))
    models: dict[str, Any] = {}
    cursors = []
    for one, news in zip(loaded, found, strict=True):
        if news is None:
            continue
        name, info = one.served.name, one.served.info
        cursors.append(f"{news.cursor}:{name}")
        models[name] = {
            "identity": info.identity,
            "block_tokens": info.block_size,
            "news": msgspec.structs.replace(
                news, cursor="", prompts=_named(news.prompts, context.followed)
            ),
        }
    return json_response({"cursor": ",".join(cursors), "models": models})


def _cursors(text: str) -> dict[str, str]:
    parts = (part.partition(":") for part in text.split(",") if part)
    return {name: cursor for cursor, _, name in parts}


async def _news(loaded: Loaded, before: dict[str, str]) -> CacheNews | None:
    try:
        return await loaded.cache_news(before.get(loaded.served.name, ""))
    except TidemillError:
        return None  # an engine that is being replaced


def _named(prompts: tuple[CachedPrompt, ...], names: RequestNames) -> tuple[CachedPrompt, ...]:
    known = ((prompt, names.of(prompt.request)) for prompt in prompts)
    return tuple(msgspec.structs.replace(prompt, request=name) for prompt, name in known if name)


ENDPOINTS = (
    # Who may ask whether a prompt is cached may learn what others asked: administrators alone.
    Endpoint("GET", "/admin/cache/changes", changes, roles=ADMINS),
)
