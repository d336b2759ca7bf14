"""Server-sent events, read and written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


def events_of(data: bytes) -> Iterator[dict[str, Any]]:
    """The decoded objects of whole events; what is none is left out."""
    for event in data.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = (line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        text = b"\n".join(lines)
        if not text.startswith(b"{"):
            continue
        try:
            found = msgspec.json.decode(text)
        except msgspec.DecodeError:
            continue
        if isinstance(found, dict):
            yield found


def event(value: dict[str, Any]) -> bytes:
    """An event as OpenAI writes it."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named_event(value: dict[str, Any]) -> bytes:
    """An event as Anthropic writes it: named by its type."""
    return b"event: %b\n" % value["type"].encode() + event(value)
