"""A conversation with a model in this process: turns, tool calls, history."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.base.ids import new_call_id
from tidemill.cli.screen import Screen

if TYPE_CHECKING:
    from tidemill.cli.functions import Functions
    from tidemill.contract.sampling import SamplingParams
    from tidemill.llm import LLM

MAX_ROUNDS = 16
"""Rounds of tool calls in one turn; then control returns to the user."""

REFUSED = "The user did not allow this call."


@dataclass(slots=True)
class Conversation:
    """Answers turns and records their messages.

    Attributes:
        llm, params: the model and its sampling parameters.
        new_screen: creates the screen that shows the next answer.
        allowed: whether the user permits a call; takes the call as text.
        system: the system message, or None.
        functions: the functions that the model may call, or None.
        options: for `LLM.stream_parts`: constraints, thinking, template variables.
        stats: whether to print token counts and rates after each answer.
        history: whether a turn includes the earlier ones.
        open_model: opens another model, by name or path; see `change_model`.
        messages: the messages so far.
    """

    llm: LLM
    params: SamplingParams
    new_screen: Callable[[], Screen]
    allowed: Callable[[str], bool]
    system: str | None = None
    functions: Functions | None = None
    options: dict[str, Any] = field(default_factory=dict)
    stats: bool = False
    history: bool = True
    open_model: Callable[[str], LLM] | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all messages except the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    @property
    def system_text(self) -> str | None:
        """The system message: the user's, else the one that the model was created with."""
        return self.llm.preset.system if self.system is None else self.system

    def set_system(self, text: str) -> None:
        """Replace the system message from the next turn on; other messages stay."""
        self.system = text
        messages = [m for m in self.messages if m["role"] != "system"]
        self.messages = [{"role": "system", "content": text}, *messages]

    def change_model(self, model: str) -> None:
        """Switch to another model and clear the conversation.

        Raises:
            TidemillError: the model cannot be opened; the current one stays loaded.
        """
        if self.open_model is None:
            raise bad_request("model", "another model cannot be loaded here")
        before, self.llm = self.llm, self.open_model(model)
        before.close()
        self.clear()

    def answer(self, text: str) -> None:
        """Answer one turn and run the permitted tool calls; Ctrl-C ends it early.

        Raises:
            TidemillError: the turn cannot be answered; `messages` omits the incomplete round.
        """
        if not self.llm.template.exists:
            self._round(text)
            return
        if not self.history:
            self.clear()
        messages = [*self.messages, {"role": "user", "content": text}]
        for _ in range(MAX_ROUNDS):
            message, stopped = self._round(messages)
            messages.append(message)
            self.messages = messages
            calls = message.get("tool_calls", [])
            if stopped or not calls:
                return
            messages = [*messages, *map(self._result, calls)]
        self.new_screen().note(f"(stopped after {MAX_ROUNDS} rounds of calls)")

    def _result(self, call: Mapping[str, Any]) -> dict[str, Any]:
        assert self.functions is not None
        function = call["function"]
        shown = described(function["name"], function["arguments"])
        if self.allowed(shown):
            result = self.functions.call(function["name"], function["arguments"])
        else:
            result = REFUSED
        self.new_screen().note(f"  {shown}\n  = {result[:500]}")
        return {
            "role": "tool",
            "tool_call_id": call["id"],
            "name": function["name"],
            "content": result,
        }

    def _round(self, prompt: Any) -> tuple[dict[str, Any], bool]:
        """Generate one answer; returns the message and whether the user interrupted it."""
        options = dict(self.options)
        if self.functions is not None:
            options["tools"] = self.functions.tools
        started, before = monotonic(), self.llm.stats.generated_tokens
        plain = isinstance(prompt, str)
        stream = self.llm.stream_parts(prompt, self.params, **({} if plain else options))
        screen = self.new_screen()
        content, reasoning = [], []
        calls: list[dict[str, str]] = []
        first, stopped = None, False
        try:
            for part in stream:
                first = first or monotonic()
                if part.reasoning:
                    reasoning.append(part.reasoning)
                    screen.think(part.reasoning)
                if part.content:
                    content.append(part.content)
                    screen.say(part.content)
                for call in part.calls:
                    if call.name is not None:
                        calls.append({"name": call.name, "arguments": ""})
                    calls[call.index]["arguments"] += call.arguments
                for error in part.errors:
                    screen.note(f"(a tool call that is none: {error})")
        except KeyboardInterrupt:
            stopped = True
        screen.end(" (stopped)" if stopped else "")
        if self.stats and first is not None:
            self._print_stats(started, first, before)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(content)}
        if reasoning:
            message["reasoning_content"] = "".join(reasoning)
        if calls and not stopped:
            message["tool_calls"] = [
                {"id": new_call_id(), "type": "function", "function": call} for call in calls
            ]
        return message, stopped

    def _print_stats(self, started: float, first: float, before: int) -> None:
        tokens, rest = self.llm.stats.generated_tokens - before, monotonic() - first
        rate = (tokens - 1) / rest if rest > 0 else 0.0
        ttft = (first - started) * 1000
        line = f"({tokens} tokens, first after {ttft:.0f} ms, then {rate:.1f} tokens/s)"
        print(line, file=sys.stderr)


def described(name: str, arguments: str) -> str:
    """A call in display form: ``get_weather(city="Paris")``."""
    try:
        values = json.loads(arguments)
        shown = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in values.items())
    except (ValueError, AttributeError):
        shown = arguments
    return f"{name}({shown})"
