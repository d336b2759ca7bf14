"""From turns and blocks to messages as `text.prompt.render_prompt` takes them.

A turn becomes one message, or several: each tool result is a message of its own. Consecutive turns
of one role are one turn, as in Anthropic's API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.server.dialects.anthropic.schema import AnthropicBlock, AnthropicMessage, Content
from tidemill.server.dialects.anthropic.signatures import KEY_VARIABLE, Signer

_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")
"""The line that Claude Code puts before its system prompt, different in every request: accounting
for Anthropic's service, not meant for the model, and the end of every cached prefix."""

_SAYS_ERROR = re.compile(r"\W*(tool_use_)?error\b", re.IGNORECASE)


@dataclass(slots=True)
class Conversation:
    """Messages for the template, and the path in the body that each came from."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def add(self, path: str, message: dict[str, Any]) -> None:
        """Append one."""
        self.messages.append(message)
        self.paths.append(path)

    @property
    def ends_with_prefill(self) -> bool:
        """The final turn is the beginning of the answer."""
        final = self.messages[-1]
        return final["role"] == "assistant" and not final.get("tool_calls")


def conversation_of(
    system: Content | None, turns: Sequence[AnthropicMessage], signer: Signer
) -> Conversation:
    """The messages of a request.

    Raises:
        TidemillError: kind BAD_REQUEST naming the block.
    """
    found = Conversation()
    text = _joined(_without_billing(block.text or "" for block in _blocks(system or "")))
    if text:
        found.add("system", {"role": "system", "content": text})
    for role, blocks in _turns(turns):
        if role == "assistant":
            _add_assistant(found, blocks, signer)
        elif role == "user":
            _add_user(found, blocks)
        elif text := _joined(_without_billing(block.text or "" for _, block in blocks)):
            found.add(blocks[0][0], {"role": "system", "content": text})
    if not found.messages:
        raise bad_request("messages", "messages: the conversation has no text")
    return found


def _without_billing(texts: Iterable[str]) -> list[str]:
    return [_BILLING.sub("", text) if _BILLING.match(text) else text for text in texts]


def _blocks(content: Content) -> list[AnthropicBlock]:
    if isinstance(content, str):
        return [AnthropicBlock(type="text", text=content)]
    return content


_Placed = list[tuple[str, AnthropicBlock]]


def _turns(messages: Sequence[AnthropicMessage]) -> list[tuple[str, _Placed]]:
    """Roles and blocks, each with its path; consecutive turns of one role joined."""
    found: list[tuple[str, _Placed]] = []
    for index, message in enumerate(messages):
        at = f"messages[{index}].content"
        placed = [
            (at if isinstance(message.content, str) else f"{at}[{place}]", block)
            for place, block in enumerate(_blocks(message.content))
        ]
        if found and found[-1][0] == message.role:
            found[-1][1].extend(placed)
        elif placed:
            found.append((message.role, placed))
    return found


def _add_user(found: Conversation, blocks: _Placed) -> None:
    """The results first: they answer the calls of the turn before, wherever they stand."""
    for path, block in blocks:
        if block.type == "tool_result":
            result = {"role": "tool", "content": _result(block), "tool_call_id": block.tool_use_id}
            found.add(path, result)
    shown = [(path, block) for path, block in blocks if block.type != "tool_result"]
    if text := _joined(shown_text(block) for _, block in shown):
        found.add(shown[0][0], {"role": "user", "content": text})
    elif not any(block.type == "tool_result" for _, block in blocks):
        found.add(blocks[0][0], {"role": "user", "content": ""})


def _result(block: AnthropicBlock) -> str:
    text = _joined(shown_text(inner) for inner in _blocks(block.content or ""))
    if block.is_error and not _SAYS_ERROR.match(text):
        text = f"Error: {text}" if text else "Error"
    return text


def _add_assistant(found: Conversation, blocks: _Placed, signer: Signer) -> None:
    message: dict[str, Any] = {"role": "assistant"}
    text = _joined(block.text or "" for _, block in blocks if block.type == "text")
    thoughts = [_thinking(path, b, signer) for path, b in blocks if b.type == "thinking"]
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": block.input},
        }
        for _, block in blocks
        if block.type == "tool_use"
    ]
    if text or not calls:
        message["content"] = text
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    found.add(blocks[0][0], message)


def _thinking(path: str, block: AnthropicBlock, signer: Signer) -> str:
    found = signer.verified(block.thinking or "", block.signature or "")
    if found is None:
        raise bad_request(
            f"{path}.signature",
            f"{path}.signature is not this server's for that thinking: send thinking blocks back "
            "unchanged, or leave them out. Signatures are valid until the server ends; with "
            f"{KEY_VARIABLE} set they stay valid",
        )
    return found


def shown_text(block: AnthropicBlock) -> str:
    """The text of a block that has one."""
    if block.type == "text":
        return block.text or ""
    title, context = block.title or "", block.context or ""
    if isinstance(block.source, str):  # a search result
        inner = _joined(part.text or "" for part in _blocks(block.content or ""))
        return f"<search_result>\n{_joined([title, block.source, inner])}\n</search_result>"
    source = block.source
    assert source is not None
    if source.data is not None:
        inner = source.data
    else:
        inner = _joined(part.text or "" for part in _blocks(source.content or ""))
    return f"<document>\n{_joined([title, context, inner])}\n</document>"


def _joined(texts: Iterable[str]) -> str:
    """Texts one after another, in lines of their own unless white space separates them already."""
    found = ""
    for text in texts:
        glued = found and text and not found[-1].isspace() and not text[0].isspace()
        found += "\n" + text if glued else text
    return found
