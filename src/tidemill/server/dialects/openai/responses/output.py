"""The output items of one response and the events of its stream, from the same deltas.

Whole answers are made of the same items, whose events nobody reads: so both agree (promise 8). An
item is made once, with one id, and its final form is what `response.completed` repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.base.ids import new_call_id, new_underscored_id
from tidemill.generation.choices import ChoiceDelta, TokenPiece
from tidemill.server.dialects.openai.responses.inputs import InputText
from tidemill.server.dialects.openai.responses.items import Item
from tidemill.server.dialects.openai.responses.sealed import seal
from tidemill.server.dialects.openai.responses.tools import Tools
from tidemill.text.answer import CallPart

Event = dict[str, Any]
Events = list[Event]
Entries = Callable[[Sequence[TokenPiece]], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request wants to see.

    Attributes:
        reasoning: the thinking.
        summary: a summary of it, which is the thinking itself.
        sealed: the thinking as `encrypted_content`, too.
        entries: makes the logprobs of text; None: they are not wanted.
    """

    reasoning: bool = True
    summary: bool = False
    sealed: bool = False
    entries: Entries | None = None


@dataclass(slots=True)
class _Text:
    """A message."""

    item: Item
    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class _Thinking:
    item: Item
    index: int
    texts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Call:
    item: Item
    index: int
    kind: str
    arguments: list[str] = field(default_factory=list)
    input: InputText | None = None


class Output:
    """Output items as they grow; one is open at a time.

    Args:
        tools: of the request.
        shown: what the request wants to see.

    Attributes:
        items: begun so far, in order; the last one may be open.
    """

    def __init__(self, tools: Tools, shown: Shown) -> None:
        self.items: list[Item] = []
        self._tools = tools
        self._shown = shown
        self._open: _Text | _Thinking | _Call | None = None
        self._space = ""  # white space before a message that has not begun
        self._pieces: list[TokenPiece] = []  # of text that has not been shown
        self._called = False

    def add(self, delta: ChoiceDelta) -> Events:
        """The events of a step."""
        events: Events = []
        if self._shown.entries is not None:
            self._pieces += delta.pieces
        if delta.reasoning and self._shown.reasoning:
            self._think(events, delta.reasoning)
        if (delta.reasoning or delta.calls) and not delta.text:
            self._pieces.clear()
        if delta.text:
            self._say(events, delta.text)
        for part in delta.calls:
            self._call(events, part)
        if delta.errors and self.items:
            last = self.items[-1]
            last["tool_call_errors"] = [*last.get("tool_call_errors", ()), *delta.errors]
        return events

    def end(self, *, cut: bool) -> Events:
        """The events that end the items.

        Args:
            cut: a limit of tokens ended the output: the open item is incomplete.
        """
        events: Events = []
        # An answer without a word is a message, too, unless its thinking took all tokens.
        wordless = not self._called and not isinstance(self._open, _Text)
        if wordless and (self._space or not cut or not self.items):
            self._begin_text(events)
            self._write(events, self._space)
        self._close(events, "incomplete" if cut else "completed")
        return events

    def _think(self, events: Events, text: str) -> None:
        thinking = self._open
        if not isinstance(thinking, _Thinking):
            self._close(events)
            item: Item = {
                "id": new_underscored_id("rs"),
                "type": "reasoning",
                "status": "in_progress",
            }
            item |= {"summary": [], "content": [], "encrypted_content": None}
            thinking = _Thinking(item, self._begin(events, item))
            self._open = thinking
            part = {"type": "reasoning_text", "text": ""}
            events.append(self._part("response.content_part.added", thinking, part))
            if self._shown.summary:
                part = {"type": "summary_text", "text": ""}
                events.append(self._summary("reasoning_summary_part.added", thinking, part=part))
        thinking.texts.append(text)
        events.append(self._about("response.reasoning_text.delta", thinking, delta=text))
        if self._shown.summary:
            events.append(self._summary("reasoning_summary_text.delta", thinking, delta=text))

    def _say(self, events: Events, text: str) -> None:
        if not isinstance(self._open, _Text):
            text = self._space + text
            if not text.strip():
                self._space = text
                return
            if self._called:
                text = text.lstrip()  # what separates it from the call
            self._begin_text(events)
        self._write(events, text)

    def _begin_text(self, events: Events) -> None:
        self._close(events)
        item: Item = {"id": new_underscored_id("msg"), "type": "message", "status": "in_progress"}
        item |= {"role": "assistant", "content": []}
        self._open = _Text(item, self._begin(events, item))
        events.append(self._part("response.content_part.added", self._open, _text_part("", [])))

    def _write(self, events: Events, text: str) -> None:
        message = self._open
        assert isinstance(message, _Text)
        self._space = ""
        entries: list[dict[str, Any]] = []
        if self._shown.entries is not None:
            entries = self._shown.entries(self._pieces)
            message.logprobs += entries
            self._pieces.clear()
        message.texts.append(text)
        if text or entries:
            events.append(
                self._about("response.output_text.delta", message, delta=text, logprobs=entries)
            )

    def _call(self, events: Events, part: CallPart) -> None:
        if part.name is not None:
            self._begin_call(events, part.name)
        call = self._open
        assert isinstance(call, _Call), "parts of a call follow its name"
        if not part.arguments:
            return
        call.arguments.append(part.arguments)
        if call.input is not None:
            if text := call.input.push(part.arguments):
                events.append(_delta("response.custom_tool_call_input.delta", call, text))
        elif call.kind == "function":
            events.append(_delta("response.function_call_arguments.delta", call, part.arguments))

    def _begin_call(self, events: Events, known_as: str) -> None:
        self._close(events)
        self._space, self._called = "", True
        offered = self._tools.of_call(known_as)
        kind = "function" if offered is None else offered.kind
        item: Item = {"id": new_underscored_id(_PREFIX[kind]), "type": _CALLS[kind]}
        item |= {"status": "in_progress", "call_id": new_call_id()}
        if kind == "tool_search":
            item |= {"execution": "client", "arguments": {}}
        else:
            item["name"] = known_as if offered is None else offered.name
            item["input" if kind == "custom" else "arguments"] = ""
            if offered is not None and offered.namespace is not None:
                item["namespace"] = offered.namespace
        call = _Call(item, self._begin(events, item), kind)
        call.input = InputText() if kind == "custom" else None
        self._open = call

    def _begin(self, events: Events, item: Item) -> int:
        index = len(self.items)
        self.items.append(item)
        events.append(
            {"type": "response.output_item.added", "output_index": index, "item": dict(item)}
        )
        return index

    def _close(self, events: Events, status: str = "completed") -> None:
        """End the open item: its own events, then its final form."""
        ended, self._open = self._open, None
        if ended is None:
            return
        if isinstance(ended, _Text):
            self._end_text(events, ended)
        elif isinstance(ended, _Thinking):
            self._end_thinking(events, ended)
        else:
            _end_call(events, ended)
        ended.item["status"] = status
        events.append(
            {
                "type": "response.output_item.done",
                "output_index": ended.index,
                "item": dict(ended.item),
            }
        )

    def _end_text(self, events: Events, message: _Text) -> None:
        text, logprobs = "".join(message.texts), message.logprobs
        part = _text_part(text, logprobs)
        message.item["content"] = [part]
        events.append(
            self._about("response.output_text.done", message, text=text, logprobs=logprobs)
        )
        events.append(self._part("response.content_part.done", message, part))

    def _end_thinking(self, events: Events, thinking: _Thinking) -> None:
        text = "".join(thinking.texts)
        part = {"type": "reasoning_text", "text": text}
        thinking.item["content"] = [part]
        events.append(self._about("response.reasoning_text.done", thinking, text=text))
        events.append(self._part("response.content_part.done", thinking, part))
        if self._shown.summary:
            part = {"type": "summary_text", "text": text}
            thinking.item["summary"] = [part]
            events.append(self._summary("reasoning_summary_text.done", thinking, text=text))
            events.append(self._summary("reasoning_summary_part.done", thinking, part=part))
        if self._shown.sealed:
            thinking.item["encrypted_content"] = seal(text)

    @staticmethod
    def _about(kind: str, of: _Text | _Thinking, **members: Any) -> Event:
        place = {"item_id": of.item["id"], "output_index": of.index, "content_index": 0}
        return {"type": kind, **place, **members}

    @staticmethod
    def _part(kind: str, of: _Text | _Thinking, part: dict[str, Any]) -> Event:
        place = {"item_id": of.item["id"], "output_index": of.index, "content_index": 0}
        return {"type": kind, **place, "part": part}

    @staticmethod
    def _summary(kind: str, of: _Thinking, **members: Any) -> Event:
        place = {"item_id": of.item["id"], "output_index": of.index, "summary_index": 0}
        return {"type": f"response.{kind}", **place, **members}


_CALLS = {
    "function": "function_call",
    "custom": "custom_tool_call",
    "tool_search": "tool_search_call",
}
_PREFIX = {"function": "fc", "custom": "ctc", "tool_search": "tsc"}


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _delta(kind: str, call: _Call, delta: str) -> Event:
    return {"type": kind, "item_id": call.item["id"], "output_index": call.index, "delta": delta}


def _end_call(events: Events, call: _Call) -> None:
    arguments = "".join(call.arguments)
    place = {"item_id": call.item["id"], "output_index": call.index}
    if call.input is not None:
        rest = call.input.finish()
        if rest:
            events.append(_delta("response.custom_tool_call_input.delta", call, rest))
        call.item["input"] = call.input.text
        done = {"type": "response.custom_tool_call_input.done", **place, "input": call.input.text}
        events.append(done)
    elif call.kind == "function":
        call.item["arguments"] = arguments
        done = {"type": "response.function_call_arguments.done", **place, "arguments": arguments}
        events.append({**done, "name": call.item["name"]})
    else:
        call.item["arguments"] = _decoded(arguments)


def _decoded(arguments: str) -> object:
    import json

    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments  # cut off
