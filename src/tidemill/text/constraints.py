"""The structured output constraint of a request, from the many fields that can state it.

`FIELDS` is the table: field -> how its value becomes a `Constraint`. Every field means the same
thing in chat, in completions and offline. This module validates the shape only; the engine
validates and compiles the language itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tidemill.base.errors import bad_request
from tidemill.contract.program import Grammar
from tidemill.text.shapes import as_json, shaped

MAX_CHOICES = 4096
MAX_TAGS = 128

# A GBNF rule at the beginning of a line. The leading white space must not cross lines, or a run of
# empty lines would take quadratic time.
_GBNF_RULE = re.compile(r"^[^\S\n]*[\w-]+\s*::=", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Region:
    """A marked region of a structural tag.

    Attributes:
        begin, end: the texts around it.
        schema: JSON schema (as JSON text) of the content between them.
        param: the schema's path in the request.
    """

    begin: str
    schema: str
    end: str
    param: str


@dataclass(frozen=True, slots=True)
class Constraint:
    """The constraint on a whole answer: a grammar, or free text with constrained regions.

    Attributes:
        field: the request's field that states it.
        grammar: the language; None for a structural tag.
        regions: of a structural tag.
        triggers: texts that open a region. Each region's `begin` starts with one of them.
    """

    field: str
    grammar: Grammar | None = None
    regions: tuple[Region, ...] = ()
    triggers: tuple[str, ...] = ()


class _JsonSchemaFormat(msgspec.Struct, forbid_unknown_fields=True):
    schema: dict[str, Any] | bool
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class _Structure(msgspec.Struct, forbid_unknown_fields=True):
    begin: str
    end: str
    schema: dict[str, Any] | bool = True


class _TagContent(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] | bool


class _Tag(msgspec.Struct, forbid_unknown_fields=True):
    begin: str
    content: _TagContent
    end: str
    type: Literal["tag"] | None = None


class _TriggeredTags(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["triggered_tags"]
    triggers: list[str]
    tags: list[_Tag]


class _StructuralTag(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["structural_tag"] | None = None
    structures: list[_Structure] | None = None
    triggers: list[str] | None = None
    format: _TriggeredTags | None = None


class _ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: _JsonSchemaFormat | None = None
    schema: dict[str, Any] | bool | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    structures: list[_Structure] | None = None
    triggers: list[str] | None = None
    format: _TriggeredTags | None = None


class _StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None


# Members of a response_format and the types that have them; with another type they are an error.
# The schema is in json_schema (OpenAI's chat completions) or next to the type (llama.cpp, Together,
# OpenAI's responses).
_MEMBERS = {
    "json_schema": ("json_schema",),
    "schema": ("json_schema", "json_object"),
    "name": ("json_schema",),
    "description": ("json_schema",),
    "strict": ("json_schema",),
    "structures": ("structural_tag",),
    "triggers": ("structural_tag",),
    "format": ("structural_tag",),
}


def _from_response_format(param: str, value: object) -> Constraint | None:
    options = shaped(param, value, _ResponseFormat)
    for member, kinds in _MEMBERS.items():
        if getattr(options, member) is not None and options.type not in kinds:
            raise bad_request(
                f"{param}.{member}",
                f"{param}.{member} belongs to the type {' or '.join(kinds)}; the type here is "
                f"{options.type}",
            )
    if options.type == "text":
        return None
    if options.type == "structural_tag":
        return _regions(param, options.structures, options.triggers, options.format)
    at, found = f"{param}.schema", options.schema
    if options.json_schema is not None:
        if found is not None:
            raise bad_request(at, f"{param}.json_schema and {at} both contain a schema; send one")
        at, found = f"{param}.json_schema.schema", options.json_schema.schema
    if found is not None:
        return Constraint(param, Grammar("json_schema", as_json(at, found), at))
    if options.type == "json_object":
        return Constraint(param, Grammar("json_object", param=param))
    at = f"{param}.json_schema"
    raise bad_request(at, f"{at} is required: an object with name and schema")


def _from_schema(param: str, value: object) -> Constraint:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad_request(param, f"{param} is not valid JSON: {error}") from None
    if not isinstance(value, Mapping | bool):
        raise bad_request(param, f"{param} must be a JSON schema: an object, or its JSON text")
    return Constraint(param, Grammar("json_schema", as_json(param, value), param))


def _from_regex(param: str, value: object) -> Constraint:
    return Constraint(param, Grammar("regex", _text(param, value, "a regular expression"), param))


def _from_choice(param: str, value: object) -> Constraint:
    choices = shaped(param, value, list[str])
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise bad_request(param, f"{param} takes 1 to {MAX_CHOICES} strings, got {len(choices)}")
    return Constraint(param, Grammar("choice", as_json(param, choices), param))


def _from_grammar(param: str, value: object) -> Constraint:
    source = _text(param, value, "a grammar: GBNF (name ::= ...) or Lark (name: ...)")
    # GBNF rules use ::=, which does not occur in a Lark grammar outside a string.
    kind = "gbnf" if _GBNF_RULE.search(source) else "lark"
    return Constraint(param, Grammar(kind, source, param))


def _from_gbnf(param: str, value: object) -> Constraint:
    return Constraint(param, Grammar("gbnf", _text(param, value, "a grammar in GBNF"), param))


def _from_json_object(param: str, value: object) -> Constraint | None:
    if not isinstance(value, bool):
        raise bad_request(param, f"{param} must be true or false")
    return Constraint(param, Grammar("json_object", param=param)) if value else None


def _from_structural_tag(param: str, value: object) -> Constraint:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad_request(param, f"{param} is not valid JSON: {error}") from None
    tag = shaped(param, value, _StructuralTag)
    return _regions(param, tag.structures, tag.triggers, tag.format)


_MEMBER_READERS: dict[str, Callable[[str, object], Constraint | None]] = {
    "json": _from_schema,
    "regex": _from_regex,
    "choice": _from_choice,
    "grammar": _from_grammar,
    "json_object": _from_json_object,
    "structural_tag": _from_structural_tag,
}


def _from_structured_outputs(param: str, value: object) -> Constraint:
    options = shaped(param, value, _StructuredOutputs)
    found = [
        constraint
        for member, read in _MEMBER_READERS.items()
        if (inner := getattr(options, member)) is not None
        and (constraint := read(f"{param}.{member}", inner)) is not None
    ]
    if len(found) == 1:
        return found[0]
    names = " and ".join(c.field for c in found)
    raise bad_request(
        param,
        f"{param} takes one constraint, got {names}; send one of them"
        if found
        else f"{param} is empty; it takes one of {', '.join(_MEMBER_READERS)}",
    )


FIELDS: dict[str, Callable[[str, object], Constraint | None]] = {
    "response_format": _from_response_format,
    "guided_json": _from_schema,
    "guided_regex": _from_regex,
    "guided_choice": _from_choice,
    "guided_grammar": _from_grammar,
    "structured_outputs": _from_structured_outputs,
    "json_schema": _from_schema,
    "grammar": _from_gbnf,
}


def constraint_of(fields: Mapping[str, object]) -> Constraint | None:
    """The request's constraint, or None for free text.

    Args:
        fields: values by the names of `FIELDS`; None where the request has none.

    Raises:
        TidemillError: kind BAD_REQUEST naming the member that is wrong, or both fields when there
            are two constraints.
    """
    found = [
        constraint
        for name, read in FIELDS.items()
        if (value := fields.get(name)) is not None and (constraint := read(name, value)) is not None
    ]
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        raise bad_request(
            second, f"{first} and {second} both constrain the answer; send one of them"
        )
    return found[0] if found else None


def _text(param: str, value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise bad_request(param, f"{param} must be a string: {what}")
    return value


def _regions(
    param: str,
    structures: list[_Structure] | None,
    triggers: list[str] | None,
    form: _TriggeredTags | None,
) -> Constraint:
    if (form is None) == (structures is None):
        raise bad_request(param, f"{param} takes either structures and triggers, or format")
    if form is not None:
        inner, at = f"{param}.format.tags", f"{param}.format.triggers"
        triggers = form.triggers
        schemas = [
            (t.begin, t.content.json_schema, t.end, f"{inner}[{i}].content.json_schema")
            for i, t in enumerate(form.tags)
        ]
    else:
        inner, at = f"{param}.structures", f"{param}.triggers"
        schemas = [
            (s.begin, s.schema, s.end, f"{inner}[{i}].schema")
            for i, s in enumerate(structures or ())
        ]
    regions = [
        Region(begin, as_json(path, schema), end, path) for begin, schema, end, path in schemas
    ]
    if not 1 <= len(regions) <= MAX_TAGS:
        raise bad_request(inner, f"{inner} takes 1 to {MAX_TAGS} regions, got {len(regions)}")
    if not triggers or not all(triggers):
        raise bad_request(at, f"{at} must contain at least one text, none of them empty")
    for index, region in enumerate(regions):
        if not any(region.begin.startswith(trigger) for trigger in triggers):
            raise bad_request(
                f"{inner}[{index}].begin",
                f"{inner}[{index}].begin must start with one of the triggers, which open a region",
            )
    return Constraint(param, None, tuple(regions), tuple(triggers))
