"""What a chat template can do, found out by rendering with it: tools, thinking, effort.

Reading a template's source says which names occur in it; only rendering says what they do. The
probes run once, when a model is opened, under the bounds that every rendering has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import TidemillError
from tidemill.text.template import ChatTemplate

SWITCHES = ("enable_thinking", "thinking")
"""Template variables that turn thinking on and off, by the names model makers gave them."""

_HISTORY = ("reasoning_content", "thinking", "reasoning")

_KEY, _NAME = "probe_key", "probe_tool"
_SHORT_ID = "probe1234"  # the one shape that every template takes
_USER = {"role": "user", "content": "probe"}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "probe",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "probe"}},
            "required": [_KEY],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a chat template does with what it is given.

    Attributes:
        tools: it tells the model about tools.
        calls: it repeats the tool calls of earlier turns.
        text_arguments: it wants a call's arguments as JSON text, not as an object.
        short_ids: it takes no call ids but those of nine letters and digits.
        switch: the variable that turns thinking on and off, or None.
        effort: it uses `reasoning_effort`.
        history: the key under which it reads the thinking of earlier turns, or None.
    """

    tools: bool = False
    calls: bool = False
    text_arguments: bool = False
    short_ids: bool = False
    switch: str | None = None
    effort: bool = False
    history: str | None = None

    @classmethod
    def of(cls, template: ChatTemplate) -> Abilities:
        """Probe a template; none at all can do nothing."""
        source = template.source
        if source is None:
            return cls()
        tools = _NAME in (_render(template, [_USER], tools=[_TOOL]) or "")
        as_object = _render_call(template, {_KEY: "v"}, tools, _SHORT_ID)
        as_text = _render_call(template, f'{{"{_KEY}": "v"}}', tools, _SHORT_ID)
        # A template that joins strings fails on an object or writes it as Python does.
        object_works = _KEY in as_object and f"{{'{_KEY}'" not in as_object
        return cls(
            tools=tools,
            calls=object_works or _KEY in as_text,
            text_arguments=not object_works,
            short_ids=bool(as_object or as_text)
            and not _render_call(
                template, {_KEY: "v"} if object_works else "{}", tools, "call_" + _SHORT_ID
            ),
            switch=next((s for s in SWITCHES if _differs(template, source, s, True, False)), None),
            effort=_differs(template, source, "reasoning_effort", "low", "high"),
            history=next((h for h in _HISTORY if re.search(rf"[.'\"]{h}\b", source)), None),
        )


def _render(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
    try:
        return template.render(messages, **more)
    except TidemillError:
        return ""


def _render_call(template: ChatTemplate, arguments: object, tools: bool, identity: str) -> str:
    call = {"id": identity, "type": "function"}
    call["function"] = {"name": _NAME, "arguments": arguments}  # type: ignore[assignment]
    messages: list[dict[str, Any]] = [
        _USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "probe", "tool_call_id": identity, "name": _NAME},
    ]
    return _render(template, messages, tools=[_TOOL] if tools else None)


def _differs(template: ChatTemplate, source: str, name: str, one: object, other: object) -> bool:
    if re.search(rf"\b{name}\b", source) is None:
        return False
    texts = [_render(template, [_USER], **{name: value}) for value in (one, other)]
    return texts[0] != texts[1]
