"""What the streams of each dialect are made of, as far as an answer is told from its repetition:
events, the texts that grow over them, and what comes once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tidemill.gateway.wire.kinds import CHAT, MESSAGES

Key = tuple[Any, ...]
Event = dict[str, Any]
Places = Iterator[tuple[Key, dict[str, Any], str]]

RESPONSES = "/v1/responses"


def _no_key(event: Event) -> Key | None:
    return None


def _nothing(event: Event, first: Event | None, number: int) -> Event:
    return event


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one dialect.

    Attributes:
        split: bytes of whole events as objects; None: the mark of the end.
        join: an object as bytes.
        places: every text of an event that grows over an answer: its key, and where it stands. A
            key that ends in ``id`` or ``role`` is of a text that comes whole.
        once: the key of an event that comes once in an answer and holds no such text.
        fits: an event of a second answer as one of the first: given that, the first event of the
            first answer, and how many events the client has.
        renamed: identities of a second answer become those of the first, wherever they stand.
    """

    split: Callable[[bytes], Iterator[Event | None]]
    join: Callable[[Event], bytes]
    places: Callable[[Event], Places]
    once: Callable[[Event], Key | None] = _no_key
    fits: Callable[[Event, Event | None, int], Event] = _nothing
    renamed: bool = False


# -- server-sent events ----------------------------------------------------------------------------


def _sse(data: bytes) -> Iterator[Event | None]:
    for event in data.replace(b"\r\n", b"\n").split(b"\n\n"):
        text = b"".join(
            line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")
        )
        if text == b"[DONE]":
            yield None
        elif text:
            found = msgspec.json.decode(text)
            if isinstance(found, dict):
                yield found


def _data(event: Event) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def _named(event: Event) -> bytes:
    return b"event: " + str(event.get("type", "")).encode() + b"\n" + _data(event)


def _strings(key: Key, where: dict[str, Any], names: Iterator[str] | tuple[str, ...]) -> Places:
    for name in names:
        if isinstance(where.get(name), str):
            yield (*key, name), where, name


# -- chat completions and completions --------------------------------------------------------------


def _choices(event: Event) -> Places:
    for choice in event.get("choices", ()):
        index = choice.get("index", 0)
        yield from _strings((index,), choice, ("text",))
        delta = choice.get("delta") or {}
        yield from _strings((index,), delta, tuple(delta))
        for call in delta.get("tool_calls") or ():
            place = (index, "call", call.get("index", 0))
            yield from _strings(place, call.get("function") or {}, ("name", "arguments"))
            yield from _strings(place, call, ("id", "type"))
        yield from _strings((index,), choice, ("finish_reason",))


def _as_chunk(event: Event, first: Event | None, number: int) -> Event:
    return {**event, **{n: first[n] for n in ("id", "created") if first and n in first}}


# -- messages --------------------------------------------------------------------------------------

_BLOCK_TEXTS = ("text", "thinking", "partial_json")


def _blocks(event: Event) -> Places:
    if event.get("type") == "content_block_delta":
        yield from _strings((event.get("index", 0),), event.get("delta") or {}, _BLOCK_TEXTS)


def _block_once(event: Event) -> Key | None:
    kind = event.get("type")
    if kind == "ping" or any(True for _ in _blocks(event)):
        return None
    # Of a signature there is one: each server has a key of its own.
    return kind, event.get("index"), (event.get("delta") or {}).get("type")


# -- responses -------------------------------------------------------------------------------------


def _items(event: Event) -> Places:
    if str(event.get("type")).endswith(".delta"):
        yield from _strings(_place(event), event, ("delta",))


def _place(event: Event) -> Key:
    names = ("type", "output_index", "content_index", "summary_index", "annotation_index")
    return tuple(event.get(name) for name in names)


def _item_once(event: Event) -> Key | None:
    return None if any(True for _ in _items(event)) else _place(event)


def _as_response(event: Event, first: Event | None, number: int) -> Event:
    if "sequence_number" in event:
        event = {**event, "sequence_number": number}
    if first is not None and isinstance(event.get("response"), dict):
        created = (first.get("response") or {}).get("created_at")
        event = {**event, "response": {**event["response"], "created_at": created}}
    return event


# -- Ollama ----------------------------------------------------------------------------------------


def _lines(data: bytes) -> Iterator[Event | None]:
    """Lines; each tool call as one of its own."""
    for line in data.splitlines():
        found = msgspec.json.decode(line) if line.strip() else None
        if not isinstance(found, dict):
            continue
        message = found.get("message")
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not calls:
            yield found
            continue
        plain = {name: value for name, value in message.items() if name != "tool_calls"}
        if plain.get("content") or plain.get("thinking"):
            yield {**found, "message": plain}
        for call in calls:
            said = {"role": message.get("role"), "content": "", "tool_calls": [call]}
            yield {**found, "message": said}


def _line(event: Event) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def _said(event: Event) -> Places:
    if not event.get("done"):
        yield from _strings(("whole",), event, ("response", "thinking"))
        message = event.get("message")
        if isinstance(message, dict):
            yield from _strings(("message",), message, ("content", "thinking"))


def _line_once(event: Event) -> Key | None:
    if event.get("done"):
        return ("done",)
    calls = (event.get("message") or {}).get("tool_calls")
    return ("call", (calls[0].get("function") or {}).get("index")) if calls else None


_CHUNKS = Shape(_sse, _data, _choices, fits=_as_chunk)
_OLLAMA = Shape(_lines, _line, _said, _line_once)

SHAPES: Mapping[str, Shape] = {
    CHAT: _CHUNKS,
    "/v1/completions": _CHUNKS,
    MESSAGES: Shape(_sse, _named, _blocks, _block_once),
    RESPONSES: Shape(_sse, _named, _items, _item_once, _as_response, renamed=True),
    "/api/chat": _OLLAMA,
    "/api/generate": _OLLAMA,
}
"""By route. The streams of others are not gone on with."""
