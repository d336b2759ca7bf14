"""Adapters that a request's body names, as several servers have it."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.base.errors import bad_request
from tidemill.generation.request import AskedAdapters
from tidemill.server.dialects.members import Body


class LoraScale(Body, kw_only=True):
    """An adapter of a request, with llama.cpp's names.

    Attributes:
        id: its number (GET /lora-adapters), or as an extension its name.
        scale: its changes times this; 0: it is not applied.
    """

    id: int | str
    scale: float = 1.0


def asked_adapters(
    lora: Sequence[LoraScale] | None, name: str | None = None, param: str = "lora_path"
) -> AskedAdapters | None:
    """What a body's list of adapters, or its name of one, asks for; None: neither is there.

    Raises:
        TidemillError: BAD_REQUEST for both, or an adapter that is listed twice.
    """
    if lora is None:
        return name or None
    if name:
        raise bad_request("lora", f"lora and {param} exclude each other; send one")
    found: dict[str | int, float] = {}
    for one in lora:
        if one.id in found:
            raise bad_request("lora", f"the adapter {str(one.id)[:80]!r} is listed twice")
        found[one.id] = one.scale
    return found
