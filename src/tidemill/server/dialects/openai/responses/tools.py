"""The tools of a request, in the layout of `text.tools`, and the way back from a call to its tool.

A table says what becomes of each kind: functions and custom tools are shown to the model; a
namespace's tools are shown under joined names and answered with their own; tools that OpenAI's
servers run cannot run here, and a notice in the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from tidemill.base.errors import bad_request, unsupported
from tidemill.text.shapes import shaped
from tidemill.text.tools import ToolUse, tool_use

INPUT = "input"
"""The argument of a custom tool's call."""

TOOL_SEARCH = "tool_search"
JOIN = "__"

Kind = Literal["function", "custom", "tool_search"]

HOSTED = frozenset(
    {
        *("web_search", "web_search_2025_08_26", "web_search_preview"),
        *("web_search_preview_2025_03_11", "file_search", "code_interpreter", "image_generation"),
        *("computer", "computer_use", "computer_use_preview", "mcp", "local_shell", "shell"),
        *("apply_patch", "programmatic_tool_calling"),
    }
)
"""Kinds that OpenAI's servers run, or whose calls are items that no local model writes."""


class _Direct(msgspec.Struct, forbid_unknown_fields=True, rename={"is_async": "async"}):
    """What every tool of a client may say of its use.

    `defer_loading` is accepted with any value: a deferred tool is shown at once.
    """

    name: str
    description: str | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    is_async: Literal[False] | None = None
    defer_loading: bool | None = None


class _Function(_Direct, forbid_unknown_fields=True):
    type: Literal["function"] = "function"
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: Any = None  # says nothing to the model


class _Text(msgspec.Struct, forbid_unknown_fields=True, tag="text"):
    pass


class _Grammar(msgspec.Struct, forbid_unknown_fields=True, tag="grammar"):
    syntax: Literal["lark", "regex"]
    definition: str


class _Custom(_Direct, forbid_unknown_fields=True):
    type: Literal["custom"] = "custom"
    format: _Text | _Grammar | None = None


class _Namespace(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    tools: list[dict[str, Any]]
    type: Literal["namespace"] = "namespace"
    description: str | None = None


class _ToolSearch(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["tool_search"] = "tool_search"
    description: str | None = None
    execution: Literal["server", "client"] | None = None
    parameters: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Offered:
    """One tool that the model sees.

    Attributes:
        shown: in the layout of chat completions.
        kind: of the item that its call becomes.
        name, namespace: as the client knows it.
        path: its place in the request.
        language: of a custom tool's input, if it is not any text.
    """

    shown: Mapping[str, Any]
    kind: Kind
    name: str
    namespace: str | None
    path: str
    language: _Grammar | None = None

    @property
    def known_as(self) -> str:
        """The name that the model sees."""
        name: str = self.shown["function"]["name"]
        return name


@dataclass(slots=True)
class Tools:
    """All tools of one request.

    Attributes:
        offered: by the names that the model sees.
        echoed: as the answer repeats them.
        not_served: kinds that were left out.
    """

    offered: dict[str, Offered] = field(default_factory=dict)
    echoed: list[dict[str, Any]] = field(default_factory=list)
    not_served: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, value: object, param: str = "tools") -> Tools:
        """Read and check the tools of a request.

        Raises:
            TidemillError: kind BAD_REQUEST or UNSUPPORTED naming the member.
        """
        tools = cls()
        if value is not None:
            tools.extend(value, param)
        return tools

    def extend(self, value: object, param: str, *, echo: bool = True) -> None:
        """Add the tools of a list; see `read`."""
        if not isinstance(value, list):
            raise bad_request(param, f"{param} must be a list of tools")
        for index, tool in enumerate(value):
            at = f"{param}[{index}]"
            for offered in self._read_one(at, tool, echo):
                if offered.known_as in self.offered:
                    other = self.offered[offered.known_as].path
                    raise bad_request(
                        f"{offered.path}.name",
                        f"{offered.path}.name: the model would see it as {offered.known_as!r}, "
                        f"like {other}; rename one",
                    )
                self.offered[offered.known_as] = offered

    def _read_one(self, at: str, tool: object, echo: bool) -> Sequence[Offered]:
        if not isinstance(tool, Mapping):
            raise bad_request(at, f"{at} must be an object")
        kind = tool.get("type")
        if _hosted(kind):
            self.not_served.append(str(kind))
            return ()
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            known = ", ".join(_READERS)
            raise unsupported(
                f"{at}.type", f"{at}.type {str(kind)[:64]!r} is not a kind of tool; known: {known}"
            )
        offered, document = read(at, tool)
        if echo:
            self.echoed.append(document)
        return offered

    def use(self, choice: object, parallel: bool | None) -> ToolUse:
        """What `text.tools` makes of them.

        Raises:
            TidemillError: naming ``tools[i]`` in the order of `offered` (see `paths`), or
                ``tool_choice``.
        """
        offered = list(self.offered.values())
        chosen = self._choice(choice)
        return tool_use([o.shown for o in offered] or None, chosen, parallel)

    def paths(self) -> dict[str, str]:
        """From the names in errors of `use` and of preparation to the request's own."""
        found: dict[str, str] = {}
        for index, offered in enumerate(self.offered.values()):
            at = f"tools[{index}].function"
            found[at] = offered.path
            if offered.language is not None:
                pattern = f"{at}.parameters.properties.{INPUT}.pattern"
                found[pattern] = f"{offered.path}.format.definition"
                found[f"{at}.strict"] = f"{offered.path}.format"
        return {**found, "tool_choice.function": "tool_choice"}

    def _choice(self, choice: object) -> object:
        """A `tool_choice` in chat's layout.

        Raises:
            TidemillError: naming ``tool_choice``.
        """
        if not isinstance(choice, Mapping):
            return choice
        kind = choice.get("type")
        if _hosted(kind):
            raise unsupported(
                "tool_choice.type",
                f"tool_choice.type: {kind} is a tool that this server does not run",
            )
        if kind == "allowed_tools" and "allowed_tools" not in choice:
            listed = choice.get("tools")
            if not isinstance(listed, list):
                raise bad_request("tool_choice.tools", "tool_choice.tools must be a list of tools")
            allowed = [
                self._reference(f"tool_choice.tools[{index}]", reference)
                for index, reference in enumerate(listed)
                if not (isinstance(reference, Mapping) and _hosted(reference.get("type")))
            ]
            mode = choice.get("mode", "auto")
            return {"type": kind, "allowed_tools": {"mode": mode, "tools": allowed}}
        if kind in ("function", "custom", TOOL_SEARCH):
            return self._reference("tool_choice", choice)
        return choice

    def _reference(self, at: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise bad_request(at, f"{at} must be an object with type and name")
        name, namespace = value.get("name"), value.get("namespace")
        if value.get("type") == TOOL_SEARCH:
            name = TOOL_SEARCH
        if not isinstance(name, str) or not isinstance(namespace, str | None):
            raise bad_request(f"{at}.name", f"{at}.name must be the name of a tool")
        return {"type": "function", "function": {"name": joined(namespace, name)}}

    def of_call(self, known_as: str) -> Offered | None:
        """The tool of a call by the name that the model wrote."""
        return self.offered.get(known_as)


def _hosted(kind: object) -> bool:
    return isinstance(kind, str) and kind in HOSTED


def joined(namespace: str | None, name: str) -> str:
    """The name that the model sees for a tool of a namespace."""
    if not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith(JOIN) else JOIN}{name}"


Read = Callable[[str, Mapping[str, Any]], tuple[Sequence[Offered], dict[str, Any]]]


def _function(
    at: str, tool: Mapping[str, Any], space: str | None = None, about: str = ""
) -> tuple[Sequence[Offered], dict[str, Any]]:
    read = shaped(at, tool, _Function)
    function: dict[str, Any] = {"name": joined(space, read.name)}
    if description := _described(about, read.description):
        function["description"] = description
    if read.parameters is not None:
        function["parameters"] = tool["parameters"]  # a null in a schema is a value
    if read.strict is not None:
        function["strict"] = read.strict
    shown = {"type": "function", "function": function}
    echoed = {"description": None, "parameters": None, **_present(tool)}
    echoed["strict"] = bool(read.strict)
    return (Offered(shown, "function", read.name, space, at),), echoed


def _custom(
    at: str, tool: Mapping[str, Any], space: str | None = None, about: str = ""
) -> tuple[Sequence[Offered], dict[str, Any]]:
    read = shaped(at, tool, _Custom)
    language = read.format if isinstance(read.format, _Grammar) else None
    text: dict[str, Any] = {"type": "string"}
    description = _described(about, read.description)
    if language is not None:
        # The model sees the language, too: masks alone make it say things that it does not mean.
        hint = f"The input is in this {language.syntax} grammar:\n{language.definition}"
        description = f"{description}\n{hint}" if description else hint
        text["pattern"] = _pattern(at, language)
    function = {
        "name": joined(space, read.name),
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {INPUT: text},
            "required": [INPUT],
            "additionalProperties": False,
        },
        "strict": language is not None,
    }
    shown = {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}
    echoed = {"format": {"type": "text"}, **_present(tool)}
    return (Offered(shown, "custom", read.name, space, at, language),), echoed


def _pattern(at: str, language: _Grammar) -> str:
    """A custom tool's language as a `pattern` of JSON Schema.

    Raises:
        TidemillError: kind UNSUPPORTED, it is not regular.
    """
    definition = language.definition
    if language.syntax == "lark":
        from tidemill.text.regular_grammar import NotRegular, regex_of  # few tools have one

        try:
            definition = regex_of(definition)
        except NotRegular as error:
            where = f"{at}.format.definition"
            raise unsupported(
                where,
                f"{where} cannot be enforced: {error}; send a grammar whose rules do not refer to "
                "themselves, or the format text",
            ) from None
    return f"^(?:{definition})$"


def _namespace(at: str, tool: Mapping[str, Any]) -> tuple[Sequence[Offered], dict[str, Any]]:
    read = shaped(at, tool, _Namespace)
    found: list[Offered] = []
    about = f"[{read.name}: {read.description}]" if read.description else ""
    for index, inner in enumerate(read.tools):
        inside = f"{at}.tools[{index}]"
        kind = "function" if inner.get("type") is None else inner["type"]
        make = {"function": _function, "custom": _custom}.get(str(kind))
        if make is None:
            raise unsupported(
                f"{inside}.type", f"{inside}.type: a namespace holds function and custom tools"
            )
        # The namespace is described once, before its first tool.
        found += make(inside, {**inner, "type": kind}, read.name, "" if index else about)[0]
    return found, {"description": "", **_present(tool)}


def _tool_search(at: str, tool: Mapping[str, Any]) -> tuple[Sequence[Offered], dict[str, Any]]:
    read = shaped(at, tool, _ToolSearch)
    if read.execution != "client":
        return (), _present(tool)  # deferred tools are shown at once: there is nothing to search
    function: dict[str, Any] = {"name": TOOL_SEARCH}
    if read.description is not None:
        function["description"] = read.description
    if read.parameters is not None:
        function["parameters"] = tool["parameters"]
    shown = {"type": "function", "function": function}
    return (Offered(shown, "tool_search", TOOL_SEARCH, None, at),), _present(tool)


_READERS: dict[str, Read] = {
    "function": _function,
    "custom": _custom,
    "namespace": _namespace,
    "tool_search": _tool_search,
}


def _described(about: str, description: str | None) -> str | None:
    return "\n".join(filter(None, (about, description))) or None


def _present(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in tool.items() if v is not None}
