"""Grammar rules of calls whose arguments are an object with bare keys and marked strings.

See `parsers.unquoted`, which reads what these rules write. Any nesting of objects, lists and types
is enforced; a keyword that says more of a value is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.text.arguments import Argument, Write, arguments_of, comma_separated, pattern
from tidemill.text.parsers.format import NamedJson
from tidemill.text.parsers.values import TYPES, alternatives, asked, resolved, types_of
from tidemill.text.tools import Tool

_KEY = re.compile(r"[^\s:,{}\[\]<>\"]+")
_KNOWN: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
# Of these JSON has the same spelling, and its keywords hold.
_AS_JSON = frozenset({"integer", "number", "boolean", "null"})


def unquoted_rules(rule: str, tool: Tool, syntax: NamedJson, write: Write) -> list[str]:
    """The rules of a call.

    Args:
        rule: name of the call's own rule; the others' begin with it.
        tool: the function; its schema as the grammar takes it.
        syntax: the layout, with `quote`.
        write: a text as the grammar spells it.

    Raises:
        TidemillError: kind BAD_REQUEST naming what cannot be enforced in this layout.
    """
    made = _Rules(rule, syntax.quote, write)
    arguments = arguments_of(tool)
    body = made.members(rule, [(a, a.schema) for a in arguments])
    begin = write(syntax.before + tool.name + syntax.after)
    return [f'{rule}: {begin} "{{" {body} "}}" {write(syntax.tail)}', *made.rules]


class _Rules:
    """The rules of one call as they are made.

    Args:
        prefix: what their names begin with.
        quote: the mark around strings.
        write: a text as the grammar spells it.
    """

    def __init__(self, prefix: str, quote: str, write: Write) -> None:
        self.rules: list[str] = []
        self._prefix, self._quote, self._write = prefix, quote, write
        self._count = 0
        self._any = ""
        self._made: dict[str, str] = {}  # rules by schema; one may refer to itself

    def members(self, rule: str, found: list[tuple[Argument, Any]]) -> str:
        """The name of the rule of an object's members, by name; empty for none."""
        found = sorted(found, key=lambda member: member[0].name)
        for number, (argument, schema) in enumerate(found):
            if not _KEY.fullmatch(argument.name):
                raise bad_request(
                    argument.param,
                    f"{argument.param}: {argument.name[:64]!r} cannot be written there",
                )
            value = self._value(argument, schema, argument.param)
            self.rules.append(f"{rule}_{number}: {self._write(argument.name + ':')} ({value})")
        self.rules += comma_separated(rule, [a.required for a, _ in found], '","')
        return f"{rule}_s0" if found else ""

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}_v{self._count}"

    def _value(self, argument: Argument, schema: Any, param: str) -> str:
        schema = resolved(argument.root, schema)
        known = alternatives(schema)
        if known is not None and not any(isinstance(k, list | dict) for k in known):
            return " | ".join(self._constant(k, param) for k in known)
        told = asked(schema)
        if set(told) == {"anyOf"}:
            return " | ".join(
                self._value(argument, branch, f"{param}.anyOf.{i}")
                for i, branch in enumerate(told["anyOf"])
            )
        types = TYPES if not told else types_of(schema)
        if types is None or not told:
            for key in told:
                raise self._more(f"{param}.{key}")
            return self._anything()
        allowed = {"type"}.union(*(_KNOWN.get(t, frozenset()) for t in types))
        if types & _AS_JSON:
            allowed |= set(told) - set().union(*_KNOWN.values())
        for key in told:
            if key not in allowed:
                raise self._more(f"{param}.{key}")
        key = json.dumps(schema)
        if not types <= _AS_JSON and key not in self._made:
            self._made[key] = name = self._name()
            values = [self._typed(argument, t, told, param) for t in sorted(types)]
            self.rules.append(f"{name}: {' | '.join(values)}")
        if key in self._made:
            return self._made[key]
        return " | ".join(self._typed(argument, t, told, param) for t in sorted(types))

    def _more(self, param: str) -> Exception:
        return bad_request(
            param,
            f"{param} cannot be enforced: this model does not write arguments as JSON; leave the "
            "keyword out, or tool_choice and strict",
        )

    def _typed(self, argument: Argument, name: str, told: Mapping[str, Any], param: str) -> str:
        if name == "string":
            return self._string(told.get("minLength", 0), told.get("maxLength", ""))
        if name == "array":
            return self._array(argument, told, param)
        if name == "object":
            return self._object(argument, told, param)
        kept = {k: v for k, v in told.items() if k not in set().union(*_KNOWN.values())}
        return argument.json({**kept, "type": name})

    def _array(self, argument: Argument, told: Mapping[str, Any], param: str) -> str:
        least, most = told.get("minItems", 0), told.get("maxItems")
        if most == 0:
            return '"[]"'
        rule = self._name()
        value = self._value(argument, told.get("items", {}), f"{param}.items")
        self.rules.append(f"{rule}: {value}")
        more = "" if most is None else most - 1
        several = f'{rule} ("," {rule}){{{max(0, least - 1)},{more}}}'
        return f'"[" {several} "]"' if least else f'"[" ({several})? "]"'

    def _object(self, argument: Argument, told: Mapping[str, Any], param: str) -> str:
        properties, required = told.get("properties", {}), told.get("required", [])
        if not properties and not required:
            key, value = self._key(), self._anything()
            return f'"{{" ({key} ":" {value} ("," {key} ":" {value})*)? "}}"'
        members = [
            (Argument(n, s, argument.root, n in required, f"{param}.properties.{n[:64]}"), s)
            for n, s in {**properties, **{n: {} for n in required if n not in properties}}.items()
        ]
        return f'"{{" {self.members(self._name(), members)} "}}"'

    def _constant(self, value: Any, param: str) -> str:
        if not isinstance(value, str):
            return self._write(json.dumps(value))
        if self._quote in value:
            raise bad_request(param, f"{param}: {value[:64]!r} holds the mark {self._quote!r}")
        return self._write(self._quote + value + self._quote)

    def _string(self, low: object = 0, high: object = "") -> str:
        terminal, quote = self._name().upper(), self._write(self._quote)
        text = f"(/(.|\\n){{{low},{high}}}/ & ~/(.|\\n)*{pattern(self._quote)}(.|\\n)*/)"
        if quote.startswith("<["):
            # A token of its own ends the text; what is text is part of the same terminal.
            self.rules.append(f"{terminal}: {text}")
            return f"{quote} {terminal} {quote}"
        self.rules.append(f"{terminal}: {text} {quote}")
        return f"{quote} {terminal}"

    def _key(self) -> str:
        return r"/[A-Za-z0-9_.\-]+/"

    def _anything(self) -> str:
        """The rule of any value."""
        if not self._any:
            self._any = name = self._name()
            json_ = "%json " + json.dumps({"type": sorted(_AS_JSON)})
            self.rules += [
                f"{name}_j: {json_}",
                f"{name}: {self._string()} | {name}_j"
                f' | "[" ({name} ("," {name})*)? "]"'
                f' | "{{" ({self._key()} ":" {name} ("," {self._key()} ":" {name})*)? "}}"',
            ]
        return self._any
