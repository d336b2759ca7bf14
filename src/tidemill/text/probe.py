"""Renders probe conversations, which show what a chat template supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.base.errors import TidemillError
from tidemill.text.abilities import Abilities
from tidemill.text.conversation import check_messages
from tidemill.text.template import ChatTemplate


def render_probe(
    template: ChatTemplate,
    abilities: Abilities,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str | None:
    """Render a conversation like a request's, without the check that nothing is dropped.

    Args:
        template: the model's.
        abilities: of that template; they determine the form of arguments, ids and thinking.
        messages: as clients send them: a call's arguments are JSON text or an object, thinking is
            `reasoning_content`.
        tools: as clients send them, or None.
        add_generation_prompt: end with the opening of the assistant's turn.
        **variables: further variables of the template (`enable_thinking`).

    Returns:
        The prompt's text; None if the template rejects or does not support the messages.
    """
    try:
        plain = check_messages(messages, abilities, template.source or "")
        return template.render(
            plain,
            add_generation_prompt=add_generation_prompt,
            **variables,
            **abilities.tools_variable.given(tools),
        )
    except TidemillError:
        return None
