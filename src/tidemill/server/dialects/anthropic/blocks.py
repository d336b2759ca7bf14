"""An answer as content blocks: the events that open, fill and close them, in order.

Streams are these events; a whole answer is what they add up to (promise 8).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tidemill.base.ids import new_call_id, new_id
from tidemill.generation.choices import ChoiceDelta
from tidemill.server.dialects.anthropic.signatures import Signer
from tidemill.text.answer import CallPart

Event = dict[str, Any]


def new_message_id() -> str:
    """Such as ``msg_5d1e…``."""
    return new_id("msg").replace("-", "_")


def _new_call_id() -> str:
    return new_call_id().replace("call", "toolu")


class BlockWriter:
    """Turns deltas into events.

    White space before the first word of a text is held back: between two calls it is none, and a
    block of white space alone would be no block of their API.

    Args:
        signer: signs the thinking.
        show_thinking: False: blocks of thinking have a signature alone.
    """

    def __init__(self, signer: Signer, *, show_thinking: bool = True) -> None:
        self._signer = signer
        self._show_thinking = show_thinking
        self._open = ""  # type of the open block
        self._index = -1
        self._thinking: list[str] = []
        self._space = ""

    def events(self, delta: ChoiceDelta) -> Iterator[Event]:
        """The events of a delta; the last one closes what is open."""
        for part in delta.answer().in_order:
            if part.reasoning:
                yield from self._think(part.reasoning)
            if part.content:
                yield from self._write(part.content)
            for call in part.calls:
                yield from self._call(call)
        if delta.finish is not None:
            if self._space and self._index < 0:
                yield from self._text(self._space)  # all there is
            yield from self._close()

    def _think(self, text: str) -> Iterator[Event]:
        if self._open != "thinking":
            yield from self._start("thinking", thinking="", signature="")
        self._thinking.append(text)
        if self._show_thinking:
            yield self._delta("thinking_delta", thinking=text)

    def _write(self, text: str) -> Iterator[Event]:
        if self._open != "text":
            text = self._space + text
            self._space = text if text.isspace() else ""
            if self._space:
                return
        yield from self._text(text)

    def _text(self, text: str) -> Iterator[Event]:
        if self._open != "text":
            yield from self._start("text", text="", citations=None)
        yield self._delta("text_delta", text=text)

    def _call(self, call: CallPart) -> Iterator[Event]:
        if call.name is not None:
            yield from self._start(
                "tool_use",
                id=_new_call_id(),
                caller={"type": "direct"},
                name=call.name,
                input={},
            )
        if call.arguments:
            yield self._delta("input_json_delta", partial_json=call.arguments)

    def _start(self, kind: str, **members: Any) -> Iterator[Event]:
        yield from self._close()
        self._space = ""
        self._open = kind
        self._index += 1
        block = {"type": kind, **members}
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, kind: str, **members: Any) -> Event:
        delta = {"type": kind, **members}
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> Iterator[Event]:
        if not self._open:
            return
        if self._open == "thinking":
            text = "".join(self._thinking)
            self._thinking.clear()
            signature = self._signer.sign(text, shown=self._show_thinking)
            yield self._delta("signature_delta", signature=signature)
        self._open = ""
        yield {"type": "content_block_stop", "index": self._index}


# type of a delta -> the member that it adds to
_FILLED = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "input",
}


class Content:
    """Blocks put together from events."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Event, dict[str, list[str]]]] = []

    def apply(self, event: Event) -> None:
        """Take one."""
        if event["type"] == "content_block_start":
            self._blocks.append((event["content_block"], {}))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            member = _FILLED[delta["type"]]
            parts = self._blocks[-1][1].setdefault(member, [])
            parts.extend(value for key, value in delta.items() if key != "type")

    def document(self) -> list[Event]:
        """The finished blocks."""
        found = []
        for block, parts in self._blocks:
            texts = {member: "".join(values) for member, values in parts.items()}
            if "input" in texts:
                found.append({**block, "input": as_object(texts["input"])})
            else:
                found.append({**block, **texts})
        return found


def as_object(arguments: str) -> msgspec.Raw | dict[str, Any]:
    """The JSON text of a call's arguments as an object, its numbers and order as written.

    The arguments of a call that max_tokens cut off are closed where they end; {} where that makes
    no object.
    """
    for text in (arguments, _closed(arguments)):
        try:
            if isinstance(msgspec.json.decode(text), dict):
                return msgspec.Raw(text.encode())
        except msgspec.DecodeError:
            continue
    return {}


def _closed(text: str) -> str:
    """A beginning of a JSON object, ended after its last complete member, with what is open
    closed."""
    nest: list[str] = []
    inside = escaped = False
    end, closing = 0, ""
    for place, sign in enumerate(text):
        if inside:
            inside = escaped or sign != '"'
            escaped = sign == "\\" and not escaped
        elif sign == '"':
            inside = True
        elif sign in "{[":
            nest.append("}" if sign == "{" else "]")
            end, closing = place + 1, "".join(reversed(nest))
        elif sign in "}]" and nest:
            nest.pop()
            end, closing = place + 1, "".join(reversed(nest))
        elif sign == ",":
            end, closing = place, "".join(reversed(nest))
    return text[:end] + closing
