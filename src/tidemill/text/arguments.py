"""Grammar rules of calls whose arguments are not one JSON object: between marks, or in Python.

What these rules write is what `parsers.readers` reads back to the same values; both ask
`parsers.values` which texts are strings. Arguments come in the schema's order, those that may be
left out can be; a schema that says more than which arguments there are, and of each what a value
can be told to obey, is refused by name.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.base.errors import TidemillError, bad_request
from tidemill.text.parsers.format import TaggedCall
from tidemill.text.parsers.values import TYPES, alternatives, asked, is_bare, resolved, types_of
from tidemill.text.tools import Tool

Write = Callable[[str], str]

_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_DEFINITIONS = ("$defs", "definitions", "x-guidance")


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument: its name, schema (references followed), definitions, and place."""

    name: str
    schema: Any
    root: Mapping[str, Any]
    required: bool
    param: str

    def json(self, schema: Any = None) -> str:
        """The rule of a value written as JSON."""
        known = {key: self.root[key] for key in _DEFINITIONS if key in self.root}
        found = self.schema if schema is None else schema
        told = found if isinstance(found, Mapping) else {}
        return f"%json {json.dumps({**told, **known}, ensure_ascii=False)}"


def tagged_rules(
    rule: str, tool: Tool, syntax: TaggedCall, write: Write, special: Mapping[str, int]
) -> list[str]:
    """The rules of a call between marks.

    Args:
        rule: name of the call's own rule; the others' begin with it.
        tool: the function; its schema as the grammar takes it.
        syntax: the layout.
        write: a text as the grammar spells it.
        special: texts that are special tokens.

    Raises:
        TidemillError: kind BAD_REQUEST naming what cannot be enforced in this layout.
    """
    rules, parts = [], [write(_line(syntax.name[0] + tool.name + syntax.name[1]))]
    for number, argument in enumerate(_arguments(tool)):
        name = f"{rule}_{number}"
        if syntax.key[1] in argument.name or argument.name != argument.name.strip():
            raise bad_request(
                argument.param, f"{argument.param}: {argument.name[:64]!r} cannot be written there"
            )
        head = syntax.key[0] + argument.name + syntax.key[1]
        if syntax.value[0]:
            head = _line(head) + syntax.value[0]
        pad = "\n" if syntax.padded else ""
        value, more = _tagged_value(name, argument, pad, syntax.value[1], write, special)
        rules += [f"{name}: {write(head + pad)} {value}", *more]
        parts.append(name if argument.required else f"{name}?")
    if syntax.end:
        parts.append(write(syntax.end))
    return [f"{rule}: {' '.join(parts)}", *rules]


def _line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _tagged_value(
    rule: str,
    argument: _Argument,
    pad: str,
    close: str,
    write: Write,
    special: Mapping[str, int],
) -> tuple[str, list[str]]:
    """The expression of a value with its closing mark, and rules it needs."""
    schema, param = argument.schema, argument.param
    known, types = alternatives(schema), types_of(schema)
    closing = write(pad + close + "\n")
    if known is not None:
        _alone(argument, {"enum", "const", "type"})
        texts = [k if isinstance(k, str) else json.dumps(k, ensure_ascii=False) for k in known]
        for text in texts:
            if close in text:
                raise bad_request(param, f"{param}.enum: {text[:64]!r} holds the mark {close!r}")
        choices = " | ".join(write(text) or '""' for text in texts)
        return f"({choices}) {closing}", []
    strings = "string" in (TYPES if types is None and not asked(schema) else types or ())
    if not strings:
        return f"{argument.json()} {closing}", []
    if not is_bare(schema):
        _alone(argument, {"type"})
    told = asked(schema)
    low, high = told.get("minLength", 0), told.get("maxLength", "")
    mark = _pattern(close)
    text = f"(/(.|\\n){{{low},{high}}}/ & ~/(.|\\n)*{mark}(.|\\n)*/)"
    terminal = rule.upper()
    if any(s in close for s in special):
        # A token of its own ends the text; the line's end before it does not.
        inner = f'{text} "\\n"' if pad else text
        after = write(close + "\n")
        return f"{terminal} {after}", [f"{terminal}: {inner}"]
    return f'{terminal} "\\n"', [f"{terminal}: {text} {write(pad + close)}"]


def _alone(argument: _Argument, known: set[str]) -> None:
    """Refuse keywords that a bare text cannot be told to obey."""
    for key in asked(argument.schema):
        if key not in known:
            param = f"{argument.param}.{key}"
            raise bad_request(
                param,
                f"{param} cannot be enforced: this model writes strings among arguments without "
                "quotes; leave the keyword out, or tool_choice and strict",
            )


def _pattern(text: str) -> str:
    """A text as a regular expression within slashes."""
    found = "".join(f"\\{c}" if c in "\\.+*?()|[]{}^$/" else c for c in text)
    return found.replace("\n", "\\n")


def python_rules(rule: str, tool: Tool, write: Write) -> list[str]:
    """The rules of a call in Python: ``f(a=1, b="x")``. See `tagged_rules`."""
    if not all(_identifier(part) for part in tool.name.split(".")):
        at = f"{tool.param}.name"
        raise bad_request(
            at, f"{at} {tool.name!r} is no name in Python, in which this model writes its calls"
        )
    rules, arguments = [], list(_arguments(tool))
    for number, argument in enumerate(arguments):
        if not _identifier(argument.name):
            raise bad_request(
                argument.param,
                f"{argument.param}: {argument.name[:64]!r} is no name in Python, in which this "
                "model writes its calls",
            )
        value = _python_value(argument, write)
        rules.append(f"{rule}_{number}: {write(argument.name + '=')} ({value})")
    count = len(arguments)
    for index in reversed(range(count)):
        own, must = f"{rule}_{index}", arguments[index].required
        last = index == count - 1
        behind = "" if last else f" {rule}_r{index + 1}"
        # _r: what follows an argument; _s: what stands where none was written yet.
        then = f'", " {own}'
        rules.append(f"{rule}_r{index}: {then if must else f'({then})?'}{behind}")
        skipped = '""' if last else f"{rule}_s{index + 1}"
        rules.append(f"{rule}_s{index}: {own}{behind}" + ("" if must else f" | {skipped}"))
    body = f" {rule}_s0" if count else ""
    return [f'{rule}: {write(tool.name + "(")}{body} ")"', *rules]


def _identifier(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


_CONSTANTS = {"boolean": '"True" | "False"', "null": '"None"'}


def _python_value(argument: _Argument, write: Write) -> str:
    known = alternatives(argument.schema)
    if known is not None and not any(isinstance(k, list | dict) for k in known):
        _alone(argument, {"enum", "const", "type"})
        texts = [
            json.dumps(k, ensure_ascii=False) if isinstance(k, str) else repr(k) for k in known
        ]
        return " | ".join(map(write, texts))
    types = types_of(argument.schema)
    if types is None or not is_bare(argument.schema) or not types & set(_CONSTANTS):
        return argument.json()
    found = [_CONSTANTS[t] for t in sorted(types & set(_CONSTANTS))]
    if rest := sorted(types - set(_CONSTANTS)):
        found.append(argument.json({"type": rest}))
    return " | ".join(found)


def _arguments(tool: Tool) -> list[_Argument]:
    """The arguments of a tool, in its schema's order.

    Raises:
        TidemillError: kind BAD_REQUEST naming a keyword that says more than which there are.
    """
    root = json.loads(tool.schema)
    param = f"{tool.param}.parameters"
    for key in asked(root):
        if key not in _OBJECT:
            raise _more(f"{param}.{key}")
    properties = root.get("properties", {})
    required = root.get("required", [])
    extra: dict[str, Any] = {name: {} for name in required if name not in properties}
    return [
        _Argument(
            name, resolved(root, schema), root, name in required, f"{param}.properties.{name[:64]}"
        )
        for name, schema in {**properties, **extra}.items()
        if schema is not False or name in required
    ]


def _more(param: str) -> TidemillError:
    return bad_request(
        param,
        f"{param} cannot be enforced: this model writes arguments one by one, not as a JSON "
        "object; describe them with properties and required alone",
    )
