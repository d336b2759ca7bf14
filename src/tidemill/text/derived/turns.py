"""Renders assistant turns with a chat template, and compares texts without splitting marks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.base.clock import monotonic
from tidemill.text.abilities import Abilities
from tidemill.text.derived.probe_calls import Call
from tidemill.text.parsers.format import ThinkMarks
from tidemill.text.probe import render_probe
from tidemill.text.template import ChatTemplate

USER = "Qqprobe user"
CONTENT = "Qqprobe content"
THOUGHT = "Qqprobe thought"
MAX_SECONDS = 5.0
"""Time limit of all renderings of one template, about a hundred times what they usually take."""
MAX_TURN = 2**16
"""Maximum characters of a turn; longer ones are ignored."""

ID = "\ue000"
"""Placeholder for a call's id in a turn."""

# An atom: a mark, a tag that is opened but not closed, a word, or one character. Comparison is by
# atoms, so a mark is never split.
_ATOM = re.compile(
    r"<[^<>\s][^<>\n]*>|«[^«»\n]*»|【[^【】\n]*】|\[/?[A-Z_]+\]|[<«【][^<>«»【】\n]*$|\w+|.",
    re.DOTALL,
)
CLOSERS, OPENERS = frozenset(">])}»】"), frozenset("<[]{«【")
"""The characters that marks end and begin with."""


def atoms(text: str) -> list[str]:
    """Split a text into marks, words and single characters."""
    return _ATOM.findall(text)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)))  # fmt: skip


def common_prefix(one: str, other: str) -> str:
    """The longest common prefix that splits no mark and no word."""
    found = atoms(one)
    return "".join(found[: _shared(found, atoms(other))])


def common_suffix(one: str, other: str) -> str:
    """The longest common suffix that splits no mark and no word."""
    found = atoms(one)
    count = _shared(found[::-1], atoms(other)[::-1])
    return "".join(found[len(found) - count :])


def without_thought(text: str, think: ThinkMarks | None) -> str:
    """Remove an empty thinking section from the beginning of a model's text."""
    for mark in () if think is None else (think.open.strip(), think.close.strip()):
        if text.lstrip().startswith(mark):
            text = text.lstrip().removeprefix(mark)
    return text


class Turns:
    """Renders the assistant's turn after a user's.

    Args:
        template: the model's.
        abilities: of that template.
        schemas: parameters of the tools that are offered, by name.
    """

    def __init__(
        self, template: ChatTemplate, abilities: Abilities, schemas: Mapping[str, Any]
    ) -> None:
        self._template = template
        self._abilities = abilities
        self._tools = [
            {"type": "function", "function": {"name": n, "description": n, "parameters": s}}
            for n, s in schemas.items()
        ]
        self._left = MAX_SECONDS
        switch = abilities.switch
        self._thinking_on = {switch: True} if switch is not None else {}

    def prompt(self, *, thinking: bool = False) -> str | None:
        """The text after the user's content in a generation prompt."""
        return self._render([], thinking, add_generation_prompt=True)

    def turn(
        self,
        calls: Sequence[Call] = (),
        content: str = "",
        thought: str = "",
        *,
        ids: bool = True,
    ) -> str | None:
        """The text after the user's content in a finished conversation.

        Args:
            calls: the assistant's tool calls.
            content: its content.
            thought: its thinking; if given, the template's thinking switch is on.
            ids: keep the calls' ids; else each is replaced by `ID`.

        Returns:
            None if the template cannot render it.
        """
        message: dict[str, Any] = {"role": "assistant", "content": content}
        names = [f"callid{n:03d}" for n in range(len(calls))]
        if calls:
            message["tool_calls"] = [
                {
                    "id": identity,
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for identity, call in zip(names, calls, strict=True)
            ]
        if thought:
            message["reasoning_content"] = thought
        text = self._render([message], bool(thought), add_generation_prompt=False)
        if text is not None and not ids:
            for identity in names:
                text = text.replace(identity, ID)
        return text

    def _render(
        self, answer: list[dict[str, Any]], thinking: bool, *, add_generation_prompt: bool
    ) -> str | None:
        if self._left <= 0:
            return None
        begun = monotonic()
        text = render_probe(
            self._template,
            self._abilities,
            [{"role": "user", "content": USER}, *answer],
            self._tools,
            add_generation_prompt=add_generation_prompt,
            **(self._thinking_on if thinking else {}),
        )
        self._left -= monotonic() - begun
        at = -1 if text is None else text.rfind(USER)
        if text is None or at < 0 or len(text) - at > MAX_TURN:
            return None
        return text[at + len(USER) :]
