"""Chat template capabilities, detected by rendering probe conversations: tools, thinking, effort.

A template's source shows which names occur in it; only rendering shows what they do. The probes run
once, when a model is opened, under the same bounds as every rendering.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tidemill.text.bounds import TimeExceeded
from tidemill.text.template import ChatTemplate

SWITCHES = ("enable_thinking", "thinking")
"""Template variables that turn thinking on and off, as published templates name them."""

ROLES = ("system", "developer", "user", "assistant", "tool")

_HISTORY = ("reasoning_content", "thinking", "reasoning")

# Tool variables other than `tools`. Variables for built-in tools are excluded: they take names that
# the model was trained on.
_OTHER_TOOLS = re.compile(r"(?!.*builtin)(?!tools$).*(tools|functions).*")
_KEY, _NAME, _VALUE, _OTHER = "probe_key", "probe_tool", "probevalue", "probeother"
_SPEAKERS = ("system", "user", "assistant")
_SHORT_ID = "probe1234"  # nine letters and digits: the only format that every template accepts
_EFFORTS = ("xhigh", "max")
_LATER_INSTRUCTIONS = ("system", "user", "assistant", "system", "user")
_USER = {"role": "user", "content": "probe"}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "probe",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "probe"}},
            "required": [_KEY],
        },
    },
}


@dataclass(frozen=True, slots=True)
class ToolsVariable:
    """The template variable that holds the tools.

    Attributes:
        name: of the variable.
        bare: it takes bare functions, without the enclosing `{"type": "function", ...}` object.
        needed: members that every function must have: of `description`, `parameters`, `properties`.
    """

    name: str = "tools"
    bare: bool = False
    needed: frozenset[str] = frozenset()

    def given(self, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """Template variables for a request's tools, which are in OpenAI's layout."""
        if not tools:
            return {}
        shown = [{**tool, "function": self._filled(tool["function"])} for tool in tools]
        return {self.name: [tool["function"] for tool in shown] if self.bare else shown}

    def _filled(self, function: Mapping[str, Any]) -> Mapping[str, Any]:
        """The function, with an empty value for each needed member that it lacks."""
        if "description" in self.needed:
            function = {**function, "description": function.get("description", "")}
        if "parameters" in self.needed and "parameters" not in function:
            function = {**function, "parameters": {"type": "object", "properties": {}}}
        stated = function.get("parameters")
        if "properties" in self.needed and stated is not None and "properties" not in stated:
            function = {**function, "parameters": {**stated, "properties": {}}}
        return function


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a chat template supports.

    Attributes:
        tools: it renders tool descriptions.
        tools_variable: the variable that holds them.
        calls: it renders the tool calls of earlier turns.
        text_arguments: it expects a call's arguments as JSON text, not as an object.
        broken_arguments: it renders arguments that are text, even if it expects an object.
        null_content: it renders the calls of a message only if the content is None.
        short_ids: it accepts only call ids of nine letters and digits.
        switch: the variable that turns thinking on and off, or None.
        effort: it uses `reasoning_effort`.
        words: the values of `_EFFORTS` that occur in its source.
        verbosity: it uses `verbosity`.
        history: the keys under which it reads the thinking of earlier turns.
        developer: it supports the role `developer`.
        names: the roles (system, user, assistant) whose `name` it renders.
        parts: the roles whose content may be a list of text parts.
        only_parts: contents must be lists of parts.
        early_instructions: it has no place for instructions after the first turn.
        alternating: it rejects a user's message after another.
    """

    tools: bool = False
    tools_variable: ToolsVariable = field(default_factory=ToolsVariable)
    calls: bool = False
    text_arguments: bool = False
    broken_arguments: bool = False
    null_content: bool = False
    short_ids: bool = False
    switch: str | None = None
    effort: bool = False
    words: frozenset[str] = frozenset()
    verbosity: bool = False
    history: tuple[str, ...] = ()
    developer: bool = False
    names: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()
    only_parts: bool = False
    early_instructions: bool = False
    alternating: bool = False

    def known_effort(self, effort: str) -> str:
        """Map a `reasoning_effort` to a value the template knows; most know none above ``high``."""
        return "high" if effort in _EFFORTS and effort not in self.words else effort

    @classmethod
    def of(cls, template: ChatTemplate) -> Self:
        """Probe a template. A missing template, or one that times out, supports nothing."""
        if template.source is None:
            return cls()
        try:
            return cls._probed(template, template.source)
        except TimeExceeded:
            return cls()

    @classmethod
    def _probed(cls, template: ChatTemplate, source: str) -> Self:
        variable = _tools_variable(template)
        shown = {} if variable is None else variable.given([_TOOL])
        return cls(
            tools=variable is not None,
            tools_variable=variable or ToolsVariable(),
            **_call_form(template, shown),
            switch=next((s for s in SWITCHES if _differs(template, s, True, False)), None),
            effort=_differs(template, "reasoning_effort", "low", "high"),
            words=frozenset(w for w in _EFFORTS if re.search(rf"['\"]{w}['\"]", source)),
            verbosity=_differs(template, "verbosity", "low", "high"),
            history=tuple(h for h in _HISTORY if _has_key(source, h)),
            developer="developer" in source and _VALUE in _render_role(template, "developer"),
            names=_names(template),
            parts=_parts(template),
            only_parts=_only_parts(template),
            early_instructions=not _takes_order(template, _LATER_INSTRUCTIONS),
            alternating=not _takes_order(template, ("user", "user")),
        )


def _has_key(source: str, key: str) -> bool:
    return re.search(rf"[.'\"]{key}\b", source) is not None


def _tools_variable(template: ChatTemplate) -> ToolsVariable | None:
    others = sorted(name for name in template.names if _OTHER_TOOLS.fullmatch(name))
    found = None
    for name in ("tools", *others):
        for bare in (False, True):
            variable = ToolsVariable(name, bare)
            text = template.probe([_USER], **variable.given([_TOOL]))
            if _NAME not in text:
                continue
            if f"'{_NAME}'" not in text:
                return _with_short_tools(template, variable)
            found = found or variable  # rendered as a Python repr, not as JSON
        if found is not None:
            break
    return found and _with_short_tools(template, found)


def _with_short_tools(template: ChatTemplate, variable: ToolsVariable) -> ToolsVariable:
    """The variable, with `needed` filled in."""

    def takes(**function: Any) -> bool:
        tool = {"type": "function", "function": {"name": _NAME, **function}}
        return _NAME in template.probe([_USER], **variable.given([tool]))

    if takes():
        return variable
    parameters = _TOOL["function"]["parameters"]
    lacking = {
        "description": {"parameters": parameters},
        "parameters": {"description": "probe"},
        "properties": {"description": "probe", "parameters": {"type": "object"}},
    }
    needed = (what for what, function in lacking.items() if not takes(**function))
    return replace(variable, needed=frozenset(needed))


def _call_form(template: ChatTemplate, shown: Mapping[str, Any]) -> dict[str, bool]:
    """The fields of `Abilities` that describe how calls are passed to the template."""
    forms = [(text, null) for text in (False, True) for null in (False, True)]
    # A Python repr of the object, or a doubly encoded JSON string, means the wrong form was passed.
    wrong = (f"'{_KEY}': '{_VALUE}'", f'\\"{_VALUE}')
    found = None
    for form in forms:
        rendered = _render_call(template, form, shown, _SHORT_ID)
        if _VALUE in rendered:
            found = found or form
            if not any(w in rendered for w in wrong):
                found = form
                break
    if found is None:
        return {}
    text, null = found
    return {
        "calls": True,
        "text_arguments": text,
        "broken_arguments": _VALUE in _render_call(template, (True, null), shown, _SHORT_ID),
        "null_content": null,
        "short_ids": not _render_call(template, found, shown, "call_" + _SHORT_ID),
    }


def _render_call(
    template: ChatTemplate, form: tuple[bool, bool], shown: Mapping[str, Any], identity: str
) -> str:
    text, null = form
    arguments = json.dumps({_KEY: _VALUE}) if text else {_KEY: _VALUE}
    messages = _calling(None if null else "", arguments, identity)
    return template.probe([_USER, *messages], **shown)


def _calling(
    content: str | None, arguments: object, identity: str, result: object = "probe"
) -> list[dict[str, Any]]:
    """A call and its result."""
    function = {"name": _NAME, "arguments": arguments}
    call = {"id": identity, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "content": result, "tool_call_id": identity, "name": _NAME},
    ]


def _render_role(template: ChatTemplate, role: str, **message: Any) -> str:
    """Render a short conversation with one message of a role; its content defaults to `_VALUE`."""
    probe = {"role": role, "content": _VALUE, **message}
    if role in ("system", "developer"):
        return template.probe([probe, _USER])
    if role == "tool":
        return template.probe([_USER, *_calling("", {}, _SHORT_ID, probe["content"])])
    return template.probe([probe] if role == "user" else [_USER, probe, _USER])


def _takes_order(template: ChatTemplate, roles: Sequence[str]) -> bool:
    """Whether messages of these roles are all rendered; True if not even one user's message is."""
    messages = [{"role": role, "content": f"{_VALUE}{i}"} for i, role in enumerate(roles)]
    text = template.probe(messages)
    if all(message["content"] in text for message in messages):
        return True
    return _VALUE not in template.probe([{"role": "user", "content": _VALUE}])


def _names(template: ChatTemplate) -> frozenset[str]:
    if not _has_key(template.source or "", "name"):
        return frozenset()
    texts = {role: _render_role(template, role, name=_OTHER) for role in _SPEAKERS}
    return frozenset(role for role, text in texts.items() if _OTHER in text)


def _parts(template: ChatTemplate) -> frozenset[str]:
    if not _has_key(template.source or "", "text"):
        return frozenset()
    return frozenset(role for role in ROLES if _takes_parts(template, role))


def _takes_parts(template: ChatTemplate, role: str) -> bool:
    parts = [{"type": "text", "text": text} for text in (_VALUE, _OTHER)]
    text = _render_role(template, role, content=parts)
    wrong = (f"'{_VALUE}'", f'"{_VALUE}"')  # the list's repr was rendered
    return _VALUE in text and _OTHER in text and not any(w in text for w in wrong)


def _only_parts(template: ChatTemplate) -> bool:
    if not _has_key(template.source or "", "text") or _VALUE in _render_role(template, "user"):
        return False
    return _takes_parts(template, "user")


def _differs(template: ChatTemplate, name: str, one: object, other: object) -> bool:
    if name not in template.names:
        return False
    texts = [template.probe([_USER], **{name: value}) for value in (one, other)]
    return texts[0] != texts[1]
