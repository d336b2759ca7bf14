"""Turns of the assistant as a chat template renders them, and how texts of marks are compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.base.clock import monotonic
from tidemill.text.abilities import Abilities
from tidemill.text.derived.made_up import Call
from tidemill.text.parsers.format import ThinkMarks
from tidemill.text.probe import render_probe
from tidemill.text.template import ChatTemplate

USER = "Qqprobe user"
CONTENT = "Qqprobe content"
THOUGHT = "Qqprobe thought"
MAX_SECONDS = 5.0
"""Of rendering for one template, a hundred times what one takes; nothing is rendered after."""
MAX_TURN = 2**16
"""Characters of a turn that is looked at."""

ID = "\ue000"
"""Stands in a turn where the template wrote a call's id."""

# A mark, an opened tag whose name is still to come, a word, or one character. Marks are compared
# whole: half of one is none.
_ATOM = re.compile(
    r"<[^<>\s][^<>\n]*>|«[^«»\n]*»|【[^【】\n]*】|\[/?[A-Z_]+\]|[<«【][^<>«»【】\n]*$|\w+|.",
    re.DOTALL,
)
CLOSERS, OPENERS = frozenset(">])}»】"), frozenset("<[]{«【")
"""What a mark ends with, and begins with."""


def atoms(text: str) -> list[str]:
    """A text as marks, words and single characters."""
    return _ATOM.findall(text)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)))  # fmt: skip


def common_prefix(one: str, other: str) -> str:
    """The longest common beginning that cuts no mark and no word."""
    found = atoms(one)
    return "".join(found[: _shared(found, atoms(other))])


def common_suffix(one: str, other: str) -> str:
    """The longest common end that cuts no mark and no word."""
    found = atoms(one)
    count = _shared(found[::-1], atoms(other)[::-1])
    return "".join(found[len(found) - count :])


def without_thought(text: str, think: ThinkMarks | None) -> str:
    """What a model writes, without an empty thought in front."""
    for mark in () if think is None else (think.open.strip(), think.close.strip()):
        if text.lstrip().startswith(mark):
            text = text.lstrip().removeprefix(mark)
    return text


class Turns:
    """Renders the assistant's turn behind one of a user.

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
        """What follows the user's words where the assistant is to answer."""
        return self._render([], thinking, add_generation_prompt=True)

    def turn(
        self,
        calls: Sequence[Call] = (),
        content: str = "",
        thought: str = "",
        *,
        ids: bool = True,
    ) -> str | None:
        """What follows the user's words where the assistant has answered.

        Args:
            calls: what it calls.
            content: what it says.
            thought: what it thinks; the template's switch is then on.
            ids: leave the calls' ids as they are; else each is `ID`.

        Returns:
            None where the template cannot render it.
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
