"""Grammar rules of calls whose arguments are not one JSON object: between marks, or in Python.

What these rules write is what `parsers.readers` reads back to the same values; both ask
`parsers.values` which texts are strings. Arguments come in the schema's order, those that may be
left out can be; a schema that says more than which arguments there are, and of each what a value
can be told to obey, is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.base.errors import TidemillError, bad_request
from tidemill.text.parsers.format import Gaps, TaggedCall
from tidemill.text.parsers.values import TYPES, alternatives, asked, is_bare, resolved, types_of
from tidemill.text.tools import Tool

Write = Callable[[str], str]

_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_ARRAY = frozenset({"type", "items", "minItems", "maxItems"})
_DEFINITIONS = ("$defs", "definitions", "x-guidance")


@dataclass(frozen=True, slots=True)
class Argument:
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
    header = tool.name + syntax.recipient if syntax.recipient else ""
    begin = write(header + syntax.name[0] + tool.name + syntax.name[1])
    if syntax.index:
        begin = f"{begin} /[0-9]{{1,3}}/ {write(syntax.index)}"
    rules, parts = [], [begin, write(syntax.gaps.name)]
    for number, argument in enumerate(arguments_of(tool)):
        name = f"{rule}_{number}"
        if syntax.key[1] in argument.name or argument.name != argument.name.strip():
            raise bad_request(
                argument.param, f"{argument.param}: {argument.name[:64]!r} cannot be written there"
            )
        layout = _Layout(syntax, argument.name, write, special)
        values, more = _tagged_values(name, argument, layout)
        rules += [f"{name}: {' | '.join(values)}", *more]
        parts.append(name if argument.required else f"{name}?")
    parts.append(write(syntax.gaps.end + syntax.end))
    return [f"{rule}: {' '.join(p for p in parts if p)}", *rules]


@dataclass(frozen=True, slots=True)
class _Layout:
    """What stands around one argument's value.

    Attributes:
        syntax: the format's.
        key: the argument's name.
        write, special: see `tagged_rules`.
        made: rules of elements by name and schema; a schema may refer to itself.
    """

    syntax: TaggedCall
    key: str
    write: Write
    special: Mapping[str, int]
    made: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def pad(self) -> str:
        """White space inside the value's marks."""
        return "\n" if self.syntax.padded else ""

    @property
    def close(self) -> str:
        """The mark that ends the value."""
        return self.syntax.value[1] + (self.key + self.syntax.echoed if self.syntax.echoed else "")

    @property
    def gap(self) -> str:
        """White space behind that mark."""
        return self.syntax.gaps.value

    def head(self, kind: str) -> str:
        """All in front of a value of a kind, as the grammar spells it."""
        syntax = self.syntax
        text = syntax.key[0] + self.key + syntax.key[1]
        if syntax.kind is not None:
            text += syntax.kind.before + kind + syntax.kind.after
        if syntax.value[0]:
            text += syntax.gaps.key + syntax.value[0]
        return self.write(text + self.pad)

    def closing(self) -> str:
        """The value's end, as the grammar spells it."""
        return self.write(self.pad + self.close + self.gap)


def _tagged_values(rule: str, argument: Argument, layout: _Layout) -> tuple[list[str], list[str]]:
    """The alternatives of a value with all that stands around it, and rules they need."""
    schema, kind = argument.schema, layout.syntax.kind
    known, types = alternatives(schema), types_of(schema)
    if known is not None:
        return _listed_values(argument, known, layout), []
    strings = "string" in (TYPES if types is None and not asked(schema) else types or ())
    others = _kinds_of(None if types is None else types - {"string"}, layout)
    if layout.syntax.echoed and (found := _element_values(rule, argument, layout)) is not None:
        return found
    if not strings:
        return _json_values(argument, others, layout), []
    if not is_bare(schema):
        _alone(argument, {"type"})
    head = layout.head(kind.text if kind is not None else "")
    value, rules = _text_value(rule, argument, layout)
    if kind is None or types == frozenset({"string"}):
        return [f"{head} {value}"], rules
    rest = sorted((TYPES if types is None else types) - {"string"})
    return [f"{head} {value}", *_json_values(argument, others, layout, {"type": rest})], rules


def _element_values(
    rule: str, argument: Argument, layout: _Layout
) -> tuple[list[str], list[str]] | None:
    """A list or an object as elements within the argument's; None where JSON is written instead."""
    told, types = asked(argument.schema), types_of(argument.schema)
    syntax = replace(layout.syntax, gaps=Gaps("", "", "", ""))
    if types == frozenset({"array"}) and set(told) <= _ARRAY:
        members = [("item", told.get("items", {}), f"{argument.param}.items")]
        least, most = told.get("minItems", 0), told.get("maxItems", "")
        many = [f"{{{least},{most}}}"]
    elif types == frozenset({"object"}) and told.get("properties") and set(told) <= _OBJECT:
        members = [
            (name, schema, f"{argument.param}.properties.{name[:64]}")
            for name, schema in told["properties"].items()
        ]
        many = ["" if name in told.get("required", ()) else "?" for name, _, _ in members]
        if set(told.get("required", ())) - set(told["properties"]):
            return None
    else:
        return None
    rules, parts = [], []
    for number, (name, schema, param) in enumerate(members):
        own, known = f"{rule}_{number}", (name, json.dumps(schema))
        if known not in layout.made:
            layout.made[known] = own
            member = Argument(name, resolved(argument.root, schema), argument.root, True, param)
            inner = _Layout(syntax, name, layout.write, layout.special, layout.made)
            values, more = _tagged_values(own, member, inner)
            rules += [f"{own}: {' | '.join(values)}", *more]
        parts.append(layout.made[known] + many[number])
    return [f"{layout.head('')} {' '.join(parts)} {layout.closing()}"], rules


def _kinds_of(types: frozenset[str] | None, layout: _Layout) -> dict[str, list[str]]:
    """What the attribute says -> JSON types written so."""
    kind = layout.syntax.kind
    found: dict[str, list[str]] = {}
    for name in sorted(TYPES - {"string"} if types is None else types):
        number = "number" if name == "integer" else name
        said = "" if kind is None else kind.other or number
        found.setdefault(said, []).append(name)
    return found


_SPELLED = {
    "boolean": ('"true"', '"false"', '"True"', '"False"'),
    "null": ('"null"', '"None"'),
}


def _json_values(
    argument: Argument, kinds: Mapping[str, list[str]], layout: _Layout, schema: Any = None
) -> list[str]:
    """Values written as JSON, each behind the attribute of its kind."""
    closing = layout.closing()
    found = argument.schema if schema is None else schema
    types = types_of(found)
    known = types is not None and types <= set(_SPELLED) and is_bare(found)
    if known and types is not None and layout.syntax.kind is None:
        # Templates that were written for Python's str() and for JSON differ here.
        either = " | ".join(word for name in sorted(types) for word in _SPELLED[name])
        return [f"{layout.head('')} ({either}) {closing}"]
    if len(kinds) == 1 or not is_bare(found):
        # Of a schema that says more than types, the attribute's value is not told by its type.
        said = " | ".join(layout.head(kind) for kind in kinds)
        return [f"({said}) {argument.json(schema)} {closing}"]
    return [
        f"{layout.head(kind)} {argument.json({'type': types})} {closing}"
        for kind, types in kinds.items()
    ]


def _listed_values(argument: Argument, known: list[Any], layout: _Layout) -> list[str]:
    """The values of an enumeration."""
    _alone(argument, {"enum", "const", "type"})
    param, kind, close = argument.param, layout.syntax.kind, layout.close
    heads: dict[str, list[str]] = {}
    for value in known:
        bare = isinstance(value, str)
        text = value if bare else json.dumps(value, ensure_ascii=False)
        if close in text:
            raise bad_request(param, f"{param}.enum: {text[:64]!r} holds the mark {close!r}")
        said = "" if kind is None else kind.text if bare else kind.other or _json_type(value)
        heads.setdefault(layout.head(said), []).append(layout.write(text) or '""')
    closing = layout.closing()
    return [f"{head} ({' | '.join(texts)}) {closing}" for head, texts in heads.items()]


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return "number"
    return "array" if isinstance(value, list) else "object"


def _text_value(rule: str, argument: Argument, layout: _Layout) -> tuple[str, list[str]]:
    """A text with its closing mark, and the rule of its terminal."""
    told = asked(argument.schema)
    low, high = told.get("minLength", 0), told.get("maxLength", "")
    close, pad, write = layout.close, layout.pad, layout.write
    text = f"(/(.|\\n){{{low},{high}}}/ & ~/(.|\\n)*{pattern(close)}(.|\\n)*/"
    if quote := layout.syntax.quotes[0]:
        text += rf" & ~/\s*{pattern(quote)}(.|\n)*/"
    text += ")"
    terminal = rule.upper()
    if any(s in close for s in layout.special):
        # A token of its own ends the text; the line's end before it does not.
        inner = f'{text} "\\n"' if pad else text
        return f"{terminal} {write(close + layout.gap)}", [f"{terminal}: {inner}"]
    return f"{terminal} {write(layout.gap)}", [f"{terminal}: {text} {write(pad + close)}"]


def _alone(argument: Argument, known: set[str]) -> None:
    """Refuse keywords that a bare text cannot be told to obey."""
    for key in asked(argument.schema):
        if key not in known:
            param = f"{argument.param}.{key}"
            raise bad_request(
                param,
                f"{param} cannot be enforced: this model writes strings among arguments without "
                "quotes; leave the keyword out, or tool_choice and strict",
            )


def pattern(text: str) -> str:
    """A text as a regular expression within slashes."""
    found = "".join(f"\\{c}" if c in "\\.+*?()|[]{}^$/" else c for c in text)
    return found.replace("\n", "\\n")


def python_rules(rule: str, tool: Tool, write: Write) -> list[str]:
    """The rules of a call in Python: ``f(a=1, b="x")``. See `tagged_rules`."""
    rules, arguments = [], arguments_of(tool)
    for number, argument in enumerate(arguments):
        # Python's own names, and those that its reader takes too: `from`, `x-y`.
        if not _NAME.fullmatch(argument.name):
            raise bad_request(
                argument.param,
                f"{argument.param}: {argument.name[:64]!r} cannot be written as the name of an "
                "argument in Python, in which this model writes its calls",
            )
        value, more = _python_value(argument, write, f"{rule}_{number}")
        rules += [f"{rule}_{number}: {write(argument.name + '=')} ({value})", *more]
    members = comma_separated(rule, [a.required for a in arguments], '", "')
    body = f" {rule}_s0" if arguments else ""
    return [f'{rule}: {write(tool.name + "(")}{body} ")"', *rules, *members]


def comma_separated(rule: str, required: list[bool], comma: str) -> list[str]:
    """Rules of members ``{rule}_0``, ``{rule}_1``, ... in order, of which some may be left out.

    Args:
        rule: what the rules' names begin with; ``{rule}_s0`` is all the members.
        required: whether each must be there.
        comma: what stands between two of them, as the grammar spells it.
    """
    rules, count = [], len(required)
    for index in reversed(range(count)):
        own, must = f"{rule}_{index}", required[index]
        last = index == count - 1
        behind = "" if last else f" {rule}_r{index + 1}"
        # _r: what follows a member; _s: what stands where none was written yet.
        then = f"{comma} {own}"
        rules.append(f"{rule}_r{index}: {then if must else f'({then})?'}{behind}")
        skipped = '""' if last else f"{rule}_s{index + 1}"
        rules.append(f"{rule}_s{index}: {own}{behind}" + ("" if must else f" | {skipped}"))
    return rules


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_CONSTANTS = {"boolean": '"True" | "False"', "null": '"None"'}


# Templates that were written with repr() put texts between single quotes.
_SINGLE_QUOTED = r"""/'([^'\\\x00-\x1f]|\\['"\\nrt])*'/"""


def _python_value(argument: Argument, write: Write, rule: str) -> tuple[str, list[str]]:
    """The expression of a value, and rules it needs."""
    known = alternatives(argument.schema)
    if known is not None and not any(isinstance(k, list | dict) for k in known):
        _alone(argument, {"enum", "const", "type"})
        texts = [
            json.dumps(k, ensure_ascii=False) if isinstance(k, str) else repr(k) for k in known
        ]
        texts += [f"'{k}'" for k in known if isinstance(k, str) and repr(k) == f"'{k}'"]
        return " | ".join(map(write, texts)), []
    types = types_of(argument.schema)
    if types == frozenset({"string"}) and set(asked(argument.schema)) == {"type"}:
        terminal = rule.upper()
        return f"{argument.json()} | {terminal}", [f"{terminal}: {_SINGLE_QUOTED}"]
    if types is None or not is_bare(argument.schema) or not types & set(_CONSTANTS):
        return argument.json(), []
    found = [_CONSTANTS[t] for t in sorted(types & set(_CONSTANTS))]
    if rest := sorted(types - set(_CONSTANTS)):
        found.append(argument.json({"type": rest}))
    return " | ".join(found), []


def arguments_of(tool: Tool) -> list[Argument]:
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
        Argument(
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
