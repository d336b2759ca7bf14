"""Items of a conversation: read, given ids, and turned into messages for a chat template.

`KINDS` is the table: kind of item -> how it is read and what it says. Items that belong to tools of
OpenAI's servers are refused by name. Successive items of the assistant (thinking, text, calls) are
one turn, as the model wrote it, so that the prompt of a next request begins like the last one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidemill.base.errors import bad_request, unsupported
from tidemill.base.ids import new_underscored_id
from tidemill.server.dialects.openai.responses.neutral import NOT_SHOWN
from tidemill.server.dialects.openai.responses.sealed import SealError, unseal
from tidemill.server.dialects.openai.responses.tools import INPUT, TOOL_SEARCH, joined

Item = dict[str, Any]

REFERENCE = "item_reference"
COMPACTION = "compaction"
"""What stands for a part of a conversation (`compact`)."""

_SUMMARY = "[what was said and done before, summed up]\n"
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ROLES = ("user", "assistant", "system", "developer")
_NOT_SHOWN = frozenset(NOT_SHOWN)
_PART_NOT_SHOWN = frozenset({"annotations", "logprobs", "cache_control", "prompt_cache_breakpoint"})


class Placed(NamedTuple):
    """An item and its place in the request, for errors."""

    item: Item
    path: str


def read_items(param: str, items: Sequence[Mapping[str, Any]]) -> list[Placed]:
    """Check items and bring each to its full form, with an id; references stay as they are.

    Raises:
        TidemillError: kind BAD_REQUEST or UNSUPPORTED naming the item and member.
    """
    return [_read(f"{param}[{index}]", item) for index, item in enumerate(items)]


def text_input(text: str, param: str = "input") -> Placed:
    """A user's message."""
    return Placed(_message_item("user", [{"type": "input_text", "text": text}]), param)


def _message_item(role: str, content: list[dict[str, Any]], identity: str | None = None) -> Item:
    return {
        "id": identity or new_underscored_id("msg"),
        "type": "message",
        "role": role,
        "status": "completed",
        "content": content,
    }


def _read(at: str, given: Mapping[str, Any]) -> Placed:
    item = {k: v for k, v in given.items() if v is not None}
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else REFERENCE if set(item) == {"id"} else None
    if kind is None:
        raise bad_request(f"{at}.type", f"{at}.type is required")
    if kind == REFERENCE:
        if not isinstance(item.get("id"), str):
            raise bad_request(f"{at}.id", f"{at}.id must be the id of an item")
        return Placed({"type": REFERENCE, "id": item["id"]}, at)
    found = KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise unsupported(
            f"{at}.type",
            f"{at}.type: items of the type {str(kind)[:64]!r} are not supported, since no tool of "
            f"that kind runs here; supported: {', '.join(KINDS)}",
        )
    identity = item.get("id")
    if not isinstance(identity, str | None):
        raise bad_request(f"{at}.id", f"{at}.id must be a string")
    unknown = set(item) - {"type", "id"} - found.members - _NOT_SHOWN
    if unknown:
        name = min(unknown)[:64]
        raise bad_request(f"{at}.{name}", f"{at}.{name} is not a field of items of the type {kind}")
    made = {
        "id": identity or new_underscored_id(found.prefix),
        "type": kind,
        **found.read(at, item),
    }
    return Placed(made, at)


def _string(at: str, item: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = item.get(name, default)
    if not isinstance(value, str):
        what = "is required" if value is None else "must be a string"
        raise bad_request(f"{at}.{name}", f"{at}.{name} {what}")
    return value


def _parts(at: str, value: object, kind: str) -> list[dict[str, Any]]:
    """A content as parts of text; a string is one part of the type `kind`."""
    if isinstance(value, str):
        value = [{"type": kind, "text": value}]
    if not isinstance(value, list):
        raise bad_request(at, f"{at} must be a string or a list of text parts")
    found = []
    for index, part in enumerate(value):
        inside = f"{at}[{index}]"
        if not isinstance(part, Mapping):
            raise bad_request(inside, f'{inside} must be an object such as {{"type": "{kind}"}}')
        given = {k: v for k, v in part.items() if v is not None}
        name = given.get("type")
        if name not in (*_TEXT_PARTS, "refusal"):
            raise unsupported(
                f"{inside}.type",
                f"{inside} has the type {str(name)[:64]!r}; this model takes text: send input_text",
            )
        holder = "refusal" if name == "refusal" else "text"
        if unknown := set(given) - {"type", holder} - _PART_NOT_SHOWN:
            at_unknown = f"{inside}.{min(unknown)[:64]}"
            raise bad_request(at_unknown, f"{at_unknown} is not a field of a part of text")
        made: dict[str, Any] = {"type": name, holder: _string(inside, given, holder)}
        if name == "output_text":
            made["annotations"] = given.get("annotations", [])
            made["logprobs"] = given.get("logprobs", [])
        found.append(made)
    return found


def text_of(parts: Iterable[Mapping[str, Any]]) -> str:
    """The text of parts."""
    return "".join(part.get("text", part.get("refusal", "")) for part in parts)


def _message(at: str, item: Mapping[str, Any]) -> Item:
    role = _string(at, item, "role")
    if role not in _ROLES:
        raise bad_request(f"{at}.role", f"{at}.role must be one of {', '.join(_ROLES)}")
    kind = "output_text" if role == "assistant" else "input_text"
    if "content" not in item:
        raise bad_request(f"{at}.content", f"{at}.content is required")
    made = {
        "role": role,
        "status": _status(item),
        "content": _parts(f"{at}.content", item["content"], kind),
    }
    return made | ({"phase": item["phase"]} if isinstance(item.get("phase"), str) else {})


def _status(item: Mapping[str, Any]) -> str:
    status = item.get("status")
    return status if status in ("in_progress", "completed", "incomplete") else "completed"


def _compaction(at: str, item: Mapping[str, Any]) -> Item:
    sealed = _string(at, item, "encrypted_content")
    try:
        unseal(sealed)
    except SealError as error:
        where = f"{at}.encrypted_content"
        raise bad_request(where, f"{where}: {error}") from None
    return {"encrypted_content": sealed}


def _agent_message(at: str, item: Mapping[str, Any]) -> Item:
    return {
        "author": _string(at, item, "author"),
        "recipient": _string(at, item, "recipient", ""),
        "content": _parts(f"{at}.content", item.get("content"), "input_text"),
    }


def _reasoning(at: str, item: Mapping[str, Any]) -> Item:
    made: Item = {
        "summary": _parts(f"{at}.summary", item.get("summary", []), "summary_text"),
        "content": _parts(f"{at}.content", item.get("content", []), "reasoning_text"),
        "encrypted_content": None,
        "status": _status(item),
    }
    sealed = item.get("encrypted_content")
    if sealed is not None:
        where = f"{at}.encrypted_content"
        made["encrypted_content"] = _string(at, item, "encrypted_content")
        if not made["content"]:
            try:
                made["content"] = [{"type": "reasoning_text", "text": unseal(sealed)}]
            except SealError as error:
                if not made["summary"]:
                    raise bad_request(where, f"{where}: {error}") from None
    return made


def _call(at: str, item: Mapping[str, Any]) -> Item:
    made = {
        "call_id": _string(at, item, "call_id"),
        "name": _string(at, item, "name"),
        "arguments": _string(at, item, "arguments", ""),
        "status": _status(item),
    }
    return made | _namespace(at, item)


def _namespace(at: str, item: Mapping[str, Any]) -> Item:
    return {"namespace": _string(at, item, "namespace")} if "namespace" in item else {}


def _custom_call(at: str, item: Mapping[str, Any]) -> Item:
    made = {
        "call_id": _string(at, item, "call_id"),
        "name": _string(at, item, "name"),
        "input": _string(at, item, "input", ""),
        "status": _status(item),
    }
    return made | _namespace(at, item)


def _output(at: str, item: Mapping[str, Any]) -> Item:
    output = item.get("output")
    if not isinstance(output, str):
        output = _parts(f"{at}.output", output, "input_text")
    made = {"call_id": _string(at, item, "call_id"), "output": output, "status": _status(item)}
    return made | {k: item[k] for k in ("name", "namespace") if isinstance(item.get(k), str)}


def _search_call(at: str, item: Mapping[str, Any]) -> Item:
    if item.get("execution", "client") != "client" or "call_id" not in item:
        raise unsupported(f"{at}.execution", f"{at}.execution: only clients search for tools here")
    return {
        "call_id": _string(at, item, "call_id"),
        "execution": "client",
        "arguments": item.get("arguments", {}),
        "status": _status(item),
    }


def _search_output(at: str, item: Mapping[str, Any]) -> Item:
    if not isinstance(item.get("tools"), list):
        raise bad_request(f"{at}.tools", f"{at}.tools must be a list of tools")
    return {
        "call_id": _string(at, item, "call_id"),
        "execution": "client",
        "tools": item["tools"],
        "status": _status(item),
    }


def _more_tools(at: str, item: Mapping[str, Any]) -> Item:
    if not isinstance(item.get("tools"), list):
        raise bad_request(f"{at}.tools", f"{at}.tools must be a list of tools")
    return {"role": item.get("role", "developer"), "tools": item["tools"]}


Read = Callable[[str, Mapping[str, Any]], Item]


class Turns:
    """Messages as they grow, each with the place of the item that began it.

    Attributes:
        messages: as `text.prompt.render_prompt` takes them.
        items: the ids of the items of each message.
        paths: of errors: ``messages[i]`` -> the item's place.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.items: list[list[str]] = []
        self.paths: dict[str, str] = {}
        self._open = False  # the last message is the assistant's and may go on

    def instruct(self, text: str, path: str) -> None:
        """Instructions before everything else."""
        self.add({"role": "system", "content": text}, path)

    def add(self, message: dict[str, Any], path: str, item: Item | None = None) -> None:
        """Begin a message."""
        self.paths[f"messages[{len(self.messages)}]"] = path
        self.messages.append(message)
        self.items.append([] if item is None else [item["id"]])
        self._open = message["role"] == "assistant"

    def assistant(self, placed: Placed) -> dict[str, Any]:
        """The assistant's turn to which an item belongs."""
        if not self._open:
            self.add({"role": "assistant"}, placed.path, placed.item)
        else:
            self.items[-1].append(placed.item["id"])
        return self.messages[-1]

    def join_leading(self) -> None:
        """Make the leading instructions one message: most templates know one, at the beginning."""
        count = 0
        while count < len(self.messages) and self.messages[count]["role"] in _INSTRUCT:
            count += 1
        if count < 2:
            return
        leading = self.messages[:count]
        roles = {message["role"] for message in leading}
        text = "\n\n".join(_plain(message["content"]) for message in leading)
        role = "system" if "system" in roles else "developer"
        self.messages[:count] = [{"role": role, "content": text}]
        self.items[:count] = [[i for ids in self.items[:count] for i in ids]]
        first = self.paths["messages[0]"]
        rest = list(self.paths.values())[count:]
        self.paths = {f"messages[{i}]": path for i, path in enumerate([first, *rest])}

    def named(self) -> dict[str, str]:
        """From the places in errors of preparation to the request's own."""
        found = dict(self.paths)
        for index, message in enumerate(self.messages):
            at = f"messages[{index}]"
            if message["role"] == "tool":
                found[f"{at}.tool_call_id"] = f"{found[at]}.call_id"
                found[f"{at}.content"] = f"{found[at]}.output"
        return found


_INSTRUCT = ("system", "developer")


def _plain(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else text_of(content)


def _content(parts: Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """As chat's messages have it: a single part is a string."""
    if len(parts) == 1:
        return text_of(parts)
    return [{"type": "text", "text": text_of((part,))} for part in parts]


def _say_message(turns: Turns, placed: Placed) -> None:
    item, path = placed
    if item["role"] != "assistant":
        turns.add({"role": item["role"], "content": _content(item["content"])}, path, item)
        return
    turn, text = turns.assistant(placed), text_of(item["content"])
    known = turn.get("content")
    turn["content"] = text if known is None else _spaced(known, text)


def _spaced(one: str, other: str) -> str:
    """Two texts of one turn, on lines of their own; see `text.answer.AnswerText`."""
    glued = one and other and not one[-1].isspace() and not other[0].isspace()
    return f"{one}\n{other}" if glued else one + other


def _say_agent(turns: Turns, placed: Placed) -> None:
    item, path = placed
    whom = f" to {item['recipient']}" if item["recipient"] else ""
    text = f"[message from {item['author']}{whom}]\n{text_of(item['content'])}"
    turns.add({"role": "user", "content": text}, path, item)


def _say_compaction(turns: Turns, placed: Placed) -> None:
    item, path = placed
    text = _SUMMARY + unseal(item["encrypted_content"])
    turns.add({"role": "user", "content": text}, path, item)


def _say_reasoning(turns: Turns, placed: Placed) -> None:
    item = placed.item
    text = text_of(item["content"] or item["summary"])
    if text:
        turn = turns.assistant(placed)
        known = turn.get("reasoning_content")
        turn["reasoning_content"] = text if known is None else _spaced(known, text)


def _say_call(turns: Turns, placed: Placed, name: str, arguments: str) -> None:
    turn = turns.assistant(placed)
    function = {"name": name, "arguments": arguments}
    call = {"id": placed.item["call_id"], "type": "function", "function": function}
    turn.setdefault("tool_calls", []).append(call)


def _say_function_call(turns: Turns, placed: Placed) -> None:
    item = placed.item
    _say_call(turns, placed, joined(item.get("namespace"), item["name"]), item["arguments"])


def _say_custom_call(turns: Turns, placed: Placed) -> None:
    item = placed.item
    arguments = json.dumps({INPUT: item["input"]}, ensure_ascii=False)
    _say_call(turns, placed, joined(item.get("namespace"), item["name"]), arguments)


def _say_search_call(turns: Turns, placed: Placed) -> None:
    arguments = json.dumps(placed.item["arguments"], ensure_ascii=False)
    _say_call(turns, placed, TOOL_SEARCH, arguments)


def _say_output(turns: Turns, placed: Placed) -> None:
    item, path = placed
    output = item["output"]
    content = output if isinstance(output, str) else text_of(output)
    message = {"role": "tool", "tool_call_id": item["call_id"], "content": content}
    turns.add(message, path, item)


def _say_found(turns: Turns, placed: Placed) -> None:
    """The tools that a client's search found; `create` adds them to the request's."""
    item, path = placed
    names = [
        joined(tool["name"], inner.get("name", "")) if tool.get("type") == "namespace" else name
        for tool in item["tools"]
        if isinstance(tool, Mapping) and isinstance(name := tool.get("name"), str)
        for inner in (tool.get("tools", ()) if tool.get("type") == "namespace" else ({},))
    ]
    content = f"found: {', '.join(names)}" if names else "found no tool"
    message = {"role": "tool", "tool_call_id": item["call_id"], "content": content}
    turns.add(message, path, item)


def _say_nothing(turns: Turns, placed: Placed) -> None:
    """It has no text of its own."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of item.

    Attributes:
        prefix: of its ids.
        members: its fields, besides those that say nothing to the model.
        read: checks and completes it.
        say: adds it to the messages.
        tools: its `tools` are added to the request's.
    """

    prefix: str
    members: frozenset[str]
    read: Read
    say: Callable[[Turns, Placed], None]
    tools: bool = field(default=False)


def _kind(
    prefix: str,
    members: str,
    read: Read,
    say: Callable[[Turns, Placed], None],
    *,
    tools: bool = False,
) -> Kind:
    return Kind(prefix, frozenset(members.split()), read, say, tools)


KINDS: dict[str, Kind] = {
    "message": _kind("msg", "role content", _message, _say_message),
    "reasoning": _kind("rs", "summary content encrypted_content", _reasoning, _say_reasoning),
    "function_call": _kind("fc", "call_id name namespace arguments", _call, _say_function_call),
    "function_call_output": _kind("fco", "call_id output name namespace", _output, _say_output),
    "custom_tool_call": _kind(
        "ctc", "call_id name namespace input", _custom_call, _say_custom_call
    ),
    "custom_tool_call_output": _kind("ctco", "call_id output name", _output, _say_output),
    "tool_search_call": _kind("tsc", "call_id execution arguments", _search_call, _say_search_call),
    "tool_search_output": _kind(
        "tso", "call_id execution tools", _search_output, _say_found, tools=True
    ),
    "additional_tools": _kind("at", "role tools", _more_tools, _say_nothing, tools=True),
    COMPACTION: _kind("cmp", "encrypted_content", _compaction, _say_compaction),
    "agent_message": _kind("amsg", "author recipient content", _agent_message, _say_agent),
}


def turns_of(items: Iterable[Placed], instructions: str | None) -> Turns:
    """The conversation of items for a chat template.

    Raises:
        TidemillError: kind BAD_REQUEST naming the item.
    """
    turns = Turns()
    if instructions:
        turns.instruct(instructions, "instructions")
    for placed in items:
        KINDS[placed.item["type"]].say(turns, placed)
    turns.join_leading()
    return turns
