"""Messages for a chat template, and the checks that nothing in them is dropped (promise 2)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tidemill.base.errors import TidemillError, bad_request
from tidemill.text.abilities import ROLES, Abilities
from tidemill.text.shapes import as_json, shaped

_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "documents"}
)
# Members of this server's answers that clients send back in the history.
_OF_AN_ANSWER = frozenset({"reasoning_content", "reasoning", "tool_calls", "tool_call_errors"})

NOT_SHOWN = frozenset(
    {
        *("id", "object", "type", "index", "status", "created", "created_at", "timestamp"),
        *("metadata", "cache_control", "annotations", "logprobs", "finish_reason", "stop_reason"),
        *("usage", "model", "provider", "parsed", "weight"),
        *("response_metadata", "additional_kwargs", "extra_content", "thinking_blocks"),
        *("reasoning_details", "opts"),
    }
)
"""Message members that clients echo back; they are not meant for the model."""

PART_NOT_SHOWN = frozenset({"cache_control", "annotations", "logprobs", "prompt_cache_breakpoint"})
"""The same for content parts."""

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of text parts; the last two are the Responses API's names."""

OWN_PARTS = {"refusal": ("refusal",), "thinking": ("thinking",), "reasoning": ("reasoning", "text")}
"""Part types that only an assistant message may have, and the members that may hold their text."""

_PART = ("type", "text")


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str | dict[str, Any] = ""  # optional in a call without arguments
    parsed_arguments: Any = None  # added by OpenAI's `parse`
    # Members of the tool that some clients copy into its calls.
    description: Any = None
    parameters: Any = None
    strict: Any = None


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    """A call of an earlier answer; members after `type` are the client's and are ignored."""

    function: _Function
    id: str | None = None
    type: Literal["function", ""] | None = None
    index: int | None = None
    thought_signature: Any = None
    status: Any = None
    cache_control: Any = None
    extra_content: Any = None
    provider_specific_fields: Any = None


def check_messages(messages: object, abilities: Abilities, source: str) -> list[dict[str, Any]]:
    """Validate messages and convert them to the form the chat template expects.

    - Contents become strings, or stay lists of parts where the template supports them.
    - Tool calls get their arguments in the template's form; tool results get the order and the
      names of their calls.
    - Earlier thinking gets the key that the template reads. It is dropped if the template reads
      none, as in templates that cut thinking from earlier turns.
    - A `name` that the template does not render is prepended to the content (``ann: hello``),
      except for the assistant, which is the model itself.
    - Members of `NOT_SHOWN` are dropped unless the template reads them.

    Args:
        messages: a sequence of mappings with a role and a content, which is a string or a list of
            text parts. Other keys are passed to templates that read them. None means absent.
        abilities: of the chat template.
        source: the chat template.

    Raises:
        TidemillError: kind BAD_REQUEST naming the message and the key.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise bad_request("messages", "messages must be a list of dicts with role and content")
    if not messages:
        raise bad_request("messages", "messages is empty")
    plain = [_plain(f"messages[{i}]", m, abilities, source) for i, m in enumerate(messages)]
    ordered = _with_results_in_order(plain)
    return _with_short_ids(ordered) if abilities.short_ids else ordered


def _with_short_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace call ids by nine letters and digits, which Mistral's templates require."""
    for message in messages:
        if "tool_call_id" in message:
            message["tool_call_id"] = _short_id(message["tool_call_id"])
        for call in message.get("tool_calls", ()):
            if "id" in call:
                call["id"] = _short_id(call["id"])
    return messages


def _short_id(identity: str) -> str:
    if len(identity) == 9 and identity.isascii() and identity.isalnum():
        return identity
    return hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:9]


def _plain(at: str, message: object, abilities: Abilities, source: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise bad_request(at, f"{at} must be a dict with role and content, got {_short(message)}")
    given = {k: v for k, v in message.items() if v is not None}
    role = given.get("role")
    if role not in ROLES:
        raise bad_request(
            f"{at}.role", f"{at}.role must be one of {', '.join(ROLES)}; got {_short(role)}"
        )
    given = _with_text_parts(at, given)
    if role == "developer" and not abilities.developer:
        role = "system"  # OpenAI renamed the role; most templates know only the old name
    own = _assistants(at, given, abilities) if role == "assistant" else {}
    # A turn may consist of calls or thinking only, or have been truncated before its first word; a
    # tool may return nothing.
    empty = role in ("assistant", "tool") and "content" not in given
    content = "" if empty else _text(at, given.get("content"))
    plain = {"role": role, "content": _content_form(content, given, str(role), abilities), **own}
    for key, value in given.items():
        if key in ("role", "content") or (role == "assistant" and key in _OF_AN_ANSWER):
            continue
        if key == "name" and role != "tool":
            _add_name(at, plain, value, abilities)
        elif key not in NOT_SHOWN or _mentions(source, key):
            _check_key(at, key, value, str(role), source)
            plain[key] = value
    return plain


def _with_text_parts(at: str, given: dict[str, Any]) -> dict[str, Any]:
    """A message whose content's parts are text alone.

    Strings in the list are parts. An assistant's refusal is text, and the thinking among its parts
    is the message's.
    """
    content = given.get("content")
    if not isinstance(content, list):
        return given
    parts: list[object] = []
    thoughts: list[str] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(kind, str) and kind in OWN_PARTS:
            text = own_text(part)
            if given.get("role") != "assistant" or text is None:
                param = f"{at}.content[{index}]"
                raise bad_request(
                    param, f"{param}: {kind} is only allowed in messages of the assistant"
                )
            if kind == "refusal":
                parts.append({"type": "text", "text": text})
            else:
                thoughts.append(text)
        else:
            parts.append(part)
    given = {k: v for k, v in given.items() if k != "content"}
    if parts or not thoughts:
        given["content"] = parts
    if thoughts:
        separate = given.get("reasoning_content") or given.get("reasoning")
        if separate and separate != "".join(thoughts):
            param = f"{at}.reasoning_content"
            raise bad_request(param, f"{param} and the thinking in content differ; send one")
        given["reasoning_content"] = "".join(thoughts)
    return given


def own_text(part: Mapping[str, Any]) -> str | None:
    """The text of a part whose type is in `OWN_PARTS`; None if it has none."""
    names = OWN_PARTS[part["type"]]
    return next((part[name] for name in names if isinstance(part.get(name), str)), None)


def _add_name(at: str, plain: dict[str, Any], name: object, abilities: Abilities) -> None:
    """Add the speaker's name: as `name` if the template renders it, else in the content."""
    if not isinstance(name, str):
        raise bad_request(f"{at}.name", f"{at}.name must be a string")
    if plain["role"] in abilities.names:
        plain["name"] = name
    elif name and plain["role"] != "assistant":
        content = plain["content"]
        if isinstance(content, list):
            plain["content"] = [{"type": "text", "text": f"{name}: "}, *content]
        else:
            plain["content"] = f"{name}: {content}"


def _check_key(at: str, key: object, value: object, role: str, source: str) -> None:
    param = f"{at}.{str(key)[:64]}"
    if key in _OF_AN_ANSWER:
        raise bad_request(param, f"{param} is only allowed in messages of the assistant")
    if role == "tool" and key in ("tool_call_id", "name"):
        if not isinstance(value, str):
            raise bad_request(param, f"{param} must be a string")
    elif not _mentions(source, str(key)):
        raise bad_request(param, f"{param} is not used by the model's chat template")


def _assistants(at: str, given: Mapping[str, Any], abilities: Abilities) -> dict[str, Any]:
    """The members that only assistant messages have: tool calls and thinking."""
    found: dict[str, Any] = {}
    thoughts = {k: given[k] for k in ("reasoning_content", "reasoning") if given.get(k)}
    for key, thought in thoughts.items():
        if not isinstance(thought, str):
            raise bad_request(f"{at}.{key}", f"{at}.{key} must be a string")
    if len(set(thoughts.values())) > 1:
        raise bad_request(
            f"{at}.reasoning", f"{at}.reasoning and {at}.reasoning_content differ; send one of them"
        )
    if thoughts:
        found |= dict.fromkeys(abilities.history, next(iter(thoughts.values())))
    if given.get("tool_calls"):
        param = f"{at}.tool_calls"
        if not abilities.calls:
            raise bad_request(param, f"{param} is not used by the model's chat template")
        calls = shaped(param, given["tool_calls"], list[_Call])
        found["tool_calls"] = [
            _call(f"{param}[{i}].function.arguments", call, abilities)
            for i, call in enumerate(calls)
        ]
    return found


def _call(param: str, call: _Call, abilities: Abilities) -> dict[str, Any]:
    plain: dict[str, Any] = {"type": "function"}
    if call.id:  # "" is what a stream's assembly leaves where it met none
        plain["id"] = call.id
    arguments = _arguments(param, call.function.arguments, abilities)
    plain["function"] = {"name": call.function.name, "arguments": arguments}
    return plain


def _arguments(param: str, arguments: str | dict[str, Any], abilities: Abilities) -> object:
    """Arguments in the form that the template expects.

    A model may have written arguments that are not a JSON object, and the conversation must be able
    to continue. They are passed as text or, if the template expects an object, as its member
    `arguments`.
    """
    if isinstance(arguments, dict):
        return as_json(param, arguments) if abilities.text_arguments else arguments
    if abilities.text_arguments:
        return arguments or "{}"
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    return arguments if abilities.broken_arguments else {"arguments": arguments}


def _with_results_in_order(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort tool results into the order of their calls, because most templates ignore call ids.

    A result also gets its call's name, for templates that render it.
    """
    ordered: list[dict[str, Any]] = []
    calls: dict[str, tuple[int, str]] | None = {}  # None: the latest have no ids
    results: list[tuple[int, dict[str, Any]]] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            results.append(_result(index, message, calls))
            continue
        ordered += _in_order(results)
        results = []
        if message.get("tool_calls"):
            calls = {
                call["id"]: (place, call["function"]["name"])
                for place, call in enumerate(message["tool_calls"])
                if "id" in call
            } or None
        ordered.append(message)
    return ordered + _in_order(results)


def _in_order(results: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [message for _, message in sorted(results, key=lambda result: result[0])]


def _result(
    index: int, message: dict[str, Any], calls: Mapping[str, tuple[int, str]] | None
) -> tuple[int, dict[str, Any]]:
    """A tool result with the index of its call; -1 if it names none."""
    identity = message.get("tool_call_id")
    if not identity or calls is None:
        return -1, {k: v for k, v in message.items() if k != "tool_call_id" or v}
    param = f"messages[{index}].tool_call_id"
    if identity not in calls:
        raise bad_request(
            param, f"{param} {identity[:80]!r} does not match the id of a preceding tool call"
        )
    place, name = calls[identity]
    given = message.get("name", name)
    if given != name:
        param = f"messages[{index}].name"
        raise bad_request(param, f"{param} is {given[:80]!r}, but its call was of {name[:80]!r}")
    return place, {**message, "name": name}


def _text(at: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise bad_request(f"{at}.content", f"{at}.content is required")
    wrong = bad_request(f"{at}.content", f"{at}.content must be a string or a list of text parts")
    if not isinstance(content, list):
        raise wrong
    return "".join(_part(part, wrong) for part in content)


def _content_form(
    text: str, given: Mapping[str, Any], role: str, abilities: Abilities
) -> str | list[dict[str, str]] | None:
    """A content in the template's form: text, a list of text parts, or None next to calls."""
    content = given.get("content")
    if isinstance(content, list) and content and role in abilities.parts:
        return [{"type": "text", "text": part["text"]} for part in content]
    if abilities.only_parts:
        return [{"type": "text", "text": text}]
    return None if not text and abilities.null_content and given.get("tool_calls") else text


def _part(part: object, wrong: TidemillError) -> str:
    if not isinstance(part, Mapping) or part.get("type") not in TEXT_PARTS or "text" not in part:
        raise wrong
    if not PART_NOT_SHOWN.issuperset(
        k for k, v in part.items() if v is not None and k not in _PART
    ):
        raise wrong
    if not isinstance(part["text"], str):
        raise wrong
    return part["text"]


def _short(value: object) -> str:
    return repr(value)[:80]


def _mentions(source: str, name: str) -> bool:
    return name.isidentifier() and re.search(rf"\b{name}\b", source) is not None


def check_kwargs(kwargs: Mapping[str, Any], names: frozenset[str]) -> None:
    """Raise unless the template reads every variable.

    Raises:
        TidemillError: kind BAD_REQUEST naming the variable.
    """
    for name in kwargs:
        param = f"chat_template_kwargs.{name[:64]}"
        if name in _RESERVED:
            raise bad_request(param, f"{param} is reserved; use the request's own field {name}")
        if name not in names:
            raise bad_request(param, f"{param} is not used by the model's chat template")


def check_documents(documents: object, names: frozenset[str]) -> None:
    """Raise unless documents are a list of objects and the template reads them.

    Raises:
        TidemillError: kind BAD_REQUEST naming ``documents`` or the document.
    """
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Sequence):
        raise bad_request("documents", "documents must be a list of objects (title, text, ...)")
    for index, document in enumerate(documents):
        if not isinstance(document, Mapping) or not all(isinstance(k, str) for k in document):
            param = f"documents[{index}]"
            raise bad_request(param, f"{param} must be an object, with title and text for example")
    if "documents" not in names:
        raise bad_request(
            "documents",
            "documents: the model's chat template does not use documents; put their text into a "
            "message",
        )
