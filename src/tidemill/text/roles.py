"""Conversations of agents in the order of roles that a chat template takes.

Agents put instructions between turns, and a user's messages behind each other. Templates that
reject that get the same texts otherwise: later instructions as a user's message, and successive
messages of a user as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.text.abilities import Abilities

_INSTRUCTIONS = ("system", "developer")


def adapted(messages: Sequence[dict[str, Any]], abilities: Abilities) -> list[dict[str, Any]]:
    """Messages, as `check_messages` returns them, whose order the template takes.

    Args:
        messages: leading instructions stay as they are.
        abilities: of the chat template.
    """
    found: list[dict[str, Any]] = []
    leading = True
    for message in messages:
        leading = leading and message["role"] in _INSTRUCTIONS
        if abilities.early_instructions and not leading and message["role"] in _INSTRUCTIONS:
            message = {**message, "role": "user"}
        last = found[-1] if found else None
        if abilities.alternating and last is not None and _both_users(last, message):
            found[-1] = {**last, "content": _joined(last["content"], message["content"])}
        else:
            found.append(message)
    return found


def _both_users(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Both are a user's, and of the same one."""
    same = one.get("name") == other.get("name")
    return one["role"] == other["role"] == "user" and same


def _joined(one: Any, other: Any) -> Any:
    """Two contents, each a text or a list of text parts."""
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n\n{other}"
    return [*_parts(one), {"type": "text", "text": "\n\n"}, *_parts(other)]


def _parts(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
