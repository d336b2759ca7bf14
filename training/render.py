"""Conversations to text: the same layout as ``chat_template.jinja``, written in Python.

The generator renders a hundred thousand conversations; a direct function does that faster than a
template engine. ``tests/training`` checks that both give the same text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.data.source import Example

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
SPECIAL_TOKENS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>",
]  # fmt: skip
TOOLS_BEFORE = "# Tools\n\nYou may call these functions:\n<tools>"
TOOLS_AFTER = (
    "\n</tools>\n\nTo call one, write:\n<tool_call>\n"
    '{"name": <name>, "arguments": <arguments>}\n</tool_call>'
)
NO_THOUGHT = "<think>\n\n</think>\n\n"


def answer_text(message: dict[str, Any]) -> str:
    """What the assistant writes in one message: content and tool calls, without reasoning."""
    text = message.get("content") or ""
    for call in message.get("tool_calls") or []:
        function = call.get("function", call)
        arguments = function["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        text += "\n" if text else ""
        text += f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}'
        text += "\n</tool_call>"
    return text


def prompt_text(example: Example) -> str:
    """The rendered prompt, up to where the model starts to write."""
    messages = example.prompt
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    parts = []
    if system or example.tools:
        parts.append("<|im_start|>system\n" + system)
        if example.tools:
            lines = ("\n" + json.dumps(tool, ensure_ascii=False) for tool in example.tools)
            parts += ["\n\n" if system else "", TOOLS_BEFORE, *lines, TOOLS_AFTER]
        parts.append("<|im_end|>\n")
    last_user = max(i for i, m in enumerate(messages) if m["role"] == "user")
    roles = [m["role"] for m in messages] + [""]
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            thought = message.get("reasoning_content") if i > last_user else None
            before = f"<think>\n{thought}\n</think>\n\n" if thought else ""
            parts.append(f"<|im_start|>assistant\n{before}{answer_text(message)}<|im_end|>\n")
        elif role == "tool":
            parts.append("" if i and roles[i - 1] == "tool" else "<|im_start|>user")
            parts.append(f"\n<tool_response>\n{message['content']}\n</tool_response>")
            parts.append("" if roles[i + 1] == "tool" else "<|im_end|>\n")
        elif role != "system" or i:
            parts.append(f"<|im_start|>{role}\n{message['content']}<|im_end|>\n")
    parts.append("<|im_start|>assistant\n" + ("" if example.thinking else NO_THOUGHT))
    return "".join(parts)


def pieces(example: Example) -> list[tuple[str, bool]]:
    """The whole text in pieces, each with whether it is learned; they tokenise apart.

    Where every turn is learned, each assistant message stands as when it was written, with the
    mark of reasoning switched off that the template drops from earlier turns.
    """
    if not example.every_turn:
        return [(prompt_text(example), False), (target_text(example), True)]
    found: list[tuple[str, bool]] = []
    before = 0
    for i, message in enumerate(example.messages):
        if message["role"] == "assistant":
            part = Example(example.kind, example.messages[: i + 1], example.tools)
            prompt = prompt_text(part).removesuffix(NO_THOUGHT)
            target = target_text(part)
            found += [(prompt[before:] + NO_THOUGHT, False), (target, True)]
            before = len(prompt) + len(target)
    return found


def target_text(example: Example) -> str:
    """What follows the prompt: reasoning if it is on, the answer and the end token."""
    thought = example.answer.get("reasoning_content") or ""
    before = f"<think>\n{thought}\n</think>\n\n" if example.thinking else ""
    return before + answer_text(example.answer) + "<|im_end|>"
