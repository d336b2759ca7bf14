"""The tools of a request: validation, and which tools may or must be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec

from tidemill.base.errors import bad_request
from tidemill.text.shapes import as_json, shaped

MAX_TOOLS = 512
MAX_NAME = 128
_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")

ANY_OBJECT = '{"type": "object", "properties": {}}'
"""Schema of a tool without parameters."""


class _Function(msgspec.Struct, forbid_unknown_fields=True, rename={"returns": "return"}):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    returns: Any = None  # written by transformers' `get_json_schema`; passed to the template
    response: Any = None  # the same, for Gemma's templates


class _Tool(msgspec.Struct, forbid_unknown_fields=True):
    function: _Function
    type: Literal["function"] = "function"
    cache_control: Any = None  # a cache hint for other servers


class _Name(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _Reference(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: _Name


class _Allowed(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[_Reference]


class _Choice(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function", "allowed_tools"]
    function: _Name | None = None
    allowed_tools: _Allowed | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call.

    Attributes:
        name: letters, digits, ``_``, ``-`` and ``.``.
        schema: JSON schema of its arguments, as JSON text.
        strict: the client requires the arguments to obey the schema.
        param: its path in the request.
    """

    name: str
    schema: str
    strict: bool
    param: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools the model sees and may call.

    Attributes:
        shown: the tools' descriptions for the chat template; empty: none.
        tools: the tools that may be called.
        required: the answer must be a call.
        parallel: several calls are allowed.
        enforced: the field that requires a grammar for the calls, for errors; None: the calls are
            unconstrained.
    """

    shown: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Tool, ...] = ()
    required: bool = False
    parallel: bool = True
    enforced: str | None = None


NO_TOOLS = ToolUse()


def tool_use(
    tools: object, choice: object = None, parallel: object = None, *, param: str = "tools"
) -> ToolUse:
    """Read and validate the tools of a request.

    Args:
        tools: a list in OpenAI's layout, or None.
        choice: `tool_choice`: ``none``, ``auto`` (the default), ``required``, a named function, or
            the `allowed_tools` form.
        parallel: `parallel_tool_calls`; True by default.
        param: the field that holds `tools`.

    Raises:
        TidemillError: kind BAD_REQUEST naming the member.
    """
    if parallel is not None and not isinstance(parallel, bool):
        raise bad_request("parallel_tool_calls", "parallel_tool_calls must be true or false")
    offered = _read_tools(param, tools) if tools is not None else []
    if not offered:
        if choice is not None and choice not in ("none", "auto"):
            raise bad_request("tool_choice", "tool_choice needs tools")
        return NO_TOOLS
    allowed = _read_choice(choice, [tool.name for tool, _ in offered])
    if allowed.mode == "none":
        # The tools are not shown either: a model does not call a tool that it does not see.
        return NO_TOOLS
    tools_ = tuple(tool for tool, _ in offered if tool.name in allowed.names)
    enforced = None
    if allowed.mode == "required" or len(tools_) < len(offered):
        enforced = "tool_choice"
    elif parallel is False:
        enforced = "parallel_tool_calls"
    else:
        enforced = next((f"{t.param}.strict" for t in tools_ if t.strict), None)
    return ToolUse(
        shown=tuple(shown for _, shown in offered),
        tools=tools_,
        required=allowed.mode == "required",
        parallel=parallel is not False and not allowed.single,
        enforced=enforced,
    )


def _read_tools(param: str, value: object) -> list[tuple[Tool, Mapping[str, Any]]]:
    if isinstance(value, list | tuple):
        value = [_nested(f"{param}[{index}]", tool) for index, tool in enumerate(value)]
    tools = shaped(param, value, list[_Tool])
    if len(tools) > MAX_TOOLS:
        raise bad_request(param, f"{param} takes at most {MAX_TOOLS} tools, got {len(tools)}")
    found: list[tuple[Tool, Mapping[str, Any]]] = []
    names: dict[str, int] = {}
    for index, tool in enumerate(tools):
        at, function = f"{param}[{index}].function", tool.function
        if not _NAME.fullmatch(function.name):
            raise bad_request(
                f"{at}.name",
                f"{at}.name must have 1 to {MAX_NAME} letters, digits, '_', '-' or '.'; "
                f"got {function.name[:80]!r}",
            )
        if function.name in names:
            raise bad_request(
                f"{at}.name",
                f"{at}.name {function.name!r} is also the name of tool {names[function.name]}",
            )
        names[function.name] = index
        schema = _parameters(f"{at}.parameters", function.parameters)
        # `strict` is for the server; the model gets the rest.
        shown = {
            k: v
            for k, v in (
                ("name", function.name),
                ("description", function.description),
                ("parameters", function.parameters),
                ("return", function.returns),
                ("response", function.response),
            )
            if v is not None
        }
        made = Tool(function.name, schema, bool(function.strict), at)
        found.append((made, {"type": "function", "function": shown}))
    return found


def _nested(at: str, tool: object) -> object:
    """Convert a tool to the layout of chat completions; the Responses API omits `function`."""
    if not isinstance(tool, Mapping) or tool.get("function") is not None:
        return tool
    if tool.get("type") == "function" and "name" in tool:
        outer = {k: v for k, v in tool.items() if k in ("type", "cache_control")}
        return {**outer, "function": {k: v for k, v in tool.items() if k not in outer}}
    if "name" in tool:
        form = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        raise bad_request(
            f"{at}.function", f"{at}.function is required: the form of a tool is {form}"
        )
    return tool


_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_VALUES = frozenset({"const", "enum", "default", "examples", "example"})


def _without_nulls(schema: object) -> object:
    """Remove keywords whose value is null from a JSON schema.

    Clients in Go and other languages write null for unset fields. The values of `_VALUES` are not
    schemas and are kept.
    """
    if isinstance(schema, list | tuple):
        return [_without_nulls(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _VALUES:
            kept[key] = value
        elif key in _MAPS and isinstance(value, Mapping):
            kept[key] = {name: _without_nulls(inner) for name, inner in value.items()}
        elif value is not None:
            kept[key] = _without_nulls(value)
    return kept


def _parameters(param: str, schema: Mapping[str, Any] | None) -> str:
    schema = cast("Mapping[str, Any]", _without_nulls(schema or {}))
    if not schema:
        return ANY_OBJECT
    if schema.get("type", "object") != "object":
        raise bad_request(
            f"{param}.type", f"{param}.type must be 'object': arguments are passed by name"
        )
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise bad_request(f"{param}.properties", f"{param}.properties must be an object of schemas")
    for name, inner in properties.items():
        if not isinstance(inner, Mapping | bool):
            at = f"{param}.properties.{name[:64]}"
            raise bad_request(at, f"{at} must be a JSON schema, got {str(inner)[:80]!r}")
    required = schema.get("required", [])
    if not isinstance(required, list | tuple) or not all(isinstance(r, str) for r in required):
        raise bad_request(f"{param}.required", f"{param}.required must be a list of names")
    return as_json(param, schema)


# Words of `tool_choice`; Mistral's API says "any" for "required".
_MODES = {"none": "none", "auto": "auto", "required": "required", "any": "required"}


@dataclass(frozen=True, slots=True)
class _AllowedCalls:
    """A parsed tool_choice: whether a call is required, the allowed tools, and if only one call."""

    mode: str
    names: frozenset[str]
    single: bool = False


def _read_choice(value: object, offered: Sequence[str]) -> _AllowedCalls:
    if isinstance(value, Mapping) and set(value) == {"type"} and value["type"] in list(_MODES):
        value = value["type"]  # Anthropic's form
    if value is None or (isinstance(value, str) and value in _MODES):
        return _AllowedCalls(_MODES[value or "auto"], frozenset(offered))
    if not isinstance(value, Mapping):
        raise bad_request(
            "tool_choice",
            "tool_choice must be none, auto, required, or an object of the type function or "
            f"allowed_tools; got {str(value)[:80]!r}",
        )
    if value.get("type") in ("function", "tool") and "name" in value and "function" not in value:
        # The form of the Responses API and of Anthropic's API.
        value = {"type": "function", "function": {k: v for k, v in value.items() if k != "type"}}
    if "type" not in value and "function" in value:
        value = {"type": "function", **value}
    choice = shaped("tool_choice", value, _Choice)
    other = "allowed_tools" if choice.type == "function" else "function"
    if getattr(choice, other) is not None:
        at = f"tool_choice.{other}"
        raise bad_request(at, f"{at} does not belong to the type {choice.type}")
    if choice.function is not None:
        name = choice.function.name
        _known("tool_choice.function.name", name, offered)
        return _AllowedCalls("required", frozenset({name}), single=True)
    allowed = choice.allowed_tools
    if allowed is None:
        at = f"tool_choice.{choice.type}"
        raise bad_request(at, f"{at} is required")
    at = "tool_choice.allowed_tools.tools"
    if not allowed.tools:
        raise bad_request(at, f"{at} is empty")
    for index, reference in enumerate(allowed.tools):
        _known(f"{at}[{index}].function.name", reference.function.name, offered)
    return _AllowedCalls(allowed.mode, frozenset(r.function.name for r in allowed.tools))


def _known(param: str, name: str, offered: Sequence[str]) -> None:
    if name not in offered:
        known = ", ".join(offered[:16])
        raise bad_request(param, f"{param} {name[:80]!r} is not one of the tools ({known})")
