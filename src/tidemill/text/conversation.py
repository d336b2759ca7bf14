"""Messages for a chat template, and the checks that nothing in them is dropped (promise 2)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.base.errors import TidemillError, bad_request

ROLES = ("system", "developer", "user", "assistant", "tool")

_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "documents"}
)
# A template may rewrite earlier answers (cut their thinking); what others said must be there.
_MUST_APPEAR = frozenset({"system", "developer", "user", "tool"})


def check_messages(messages: object, source: str) -> list[dict[str, Any]]:
    """Messages from Python code as plain dicts whose content is a string.

    Args:
        messages: a sequence of mappings with a role and a content, which is a string or a list of
            text parts; other keys are for templates that read them.
        source: the chat template.

    Raises:
        TidemillError: kind BAD_REQUEST naming the message and the key.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise bad_request("messages", "messages must be a list of dicts with role and content")
    if not messages:
        raise bad_request("messages", "messages is empty")
    return [_plain(f"messages[{i}]", message, source) for i, message in enumerate(messages)]


def _plain(at: str, message: object, source: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise bad_request(at, f"{at} must be a dict with role and content, got {_short(message)}")
    role = message.get("role")
    if role not in ROLES:
        raise bad_request(
            f"{at}.role", f"{at}.role must be one of {', '.join(ROLES)}; got {_short(role)}"
        )
    if role == "developer" and "developer" not in source:
        role = "system"
    for key in message:
        if key not in ("role", "content") and not _mentions(source, str(key)):
            raise bad_request(f"{at}.{key}", f"{at}.{key} is not used by the model's chat template")
    return {**message, "role": role, "content": _text(at, message.get("content"))}


def _text(at: str, content: object) -> str:
    if isinstance(content, str):
        return content
    wrong = bad_request(f"{at}.content", f"{at}.content must be a string or a list of text parts")
    if not isinstance(content, list):
        raise wrong
    return "".join(_part(part, wrong) for part in content)


def _part(part: object, wrong: TidemillError) -> str:
    if not isinstance(part, Mapping) or set(part) != {"type", "text"} or part["type"] != "text":
        raise wrong
    if not isinstance(part["text"], str):
        raise wrong
    return part["text"]


def _short(value: object) -> str:
    return repr(value)[:80]


def _mentions(source: str, name: str) -> bool:
    return name.isidentifier() and re.search(rf"\b{name}\b", source) is not None


def check_kwargs(kwargs: Mapping[str, Any], source: str) -> None:
    """Raise unless the template uses every variable.

    Raises:
        TidemillError: kind BAD_REQUEST naming the variable.
    """
    for name in kwargs:
        param = f"chat_template_kwargs.{name[:64]}"
        if name in _RESERVED:
            raise bad_request(param, f"{param} has a field of its own in the request")
        if not _mentions(source, name):
            raise bad_request(param, f"{param} is not used by the model's chat template")


def check_complete(messages: Sequence[Mapping[str, Any]], prompt: str) -> None:
    """Raise if the template left out what somebody said.

    Args:
        messages: as they were given to the template; contents are strings.
        prompt: what it made of them.

    Raises:
        TidemillError: kind BAD_REQUEST naming the message.
    """
    for index, message in enumerate(messages):
        if message["role"] in _MUST_APPEAR and not _appears(message["content"].strip(), prompt):
            raise bad_request(
                f"messages[{index}]",
                f"the model's chat template drops messages[{index}] (role {message['role']}); "
                "merge its content into a message the template keeps",
            )
        if (name := message.get("name")) is not None and name not in prompt:
            raise bad_request(
                f"messages[{index}].name",
                f"the model's chat template does not use the name of messages[{index}]",
            )


def _appears(text: str, prompt: str) -> bool:
    # Templates may write a tool's answer as a JSON string.
    return text in prompt or any(
        json.dumps(text, ensure_ascii=ascii_only)[1:-1] in prompt for ascii_only in (False, True)
    )
