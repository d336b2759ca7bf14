"""Request bodies as structs: declaration, validation and conversion from decoded JSON.

A body is declared once (`server.dialects.openai.schema`), as a msgspec struct. The declaration
gives its types, the OpenAPI schema (`server.openapi`) and, with `checked`, checks beyond types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar, get_type_hints

import msgspec
from msgspec.structs import fields

from tidemill.server.dialects.fields import NO_FIELDS, Alias, Fields, Group, Neutral, closest, equal
from tidemill.text.shapes import InvalidShape, parts_of, words_at

# Checks a member's value beyond its type; raises `InvalidField`.
Check = Callable[[Any], None]
JsonSchema = dict[str, Any]

_CHECK = "check"


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of every object in a request body; absent and null members are None.

    Attributes:
        known: neutral values of members, and fields that are not members
            (`server.dialects.fields`).
    """

    known: ClassVar[Fields] = NO_FIELDS

    def finalize(self) -> None:
        """Normalize and check combinations of members.

        Raises:
            InvalidField: they contradict each other.
        """


Model = TypeVar("Model", bound=Body)


class InvalidField(Exception):
    """A value that its member does not accept.

    Attributes:
        code: `code` of the error response.
        reason: what is wrong, without the member's name.
        path: of the member, such as ``messages[0].role``; callers prepend their part.
    """

    def __init__(self, code: str, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.code, self.reason, self.path = code, reason, path


def wrong_type(reason: str) -> InvalidField:
    """A value of the wrong type."""
    return InvalidField("invalid_type", reason)


def wrong_value(reason: str) -> InvalidField:
    """A value of the right type that is invalid."""
    return InvalidField("invalid_value", reason)


def unsupported(reason: str) -> InvalidField:
    """A value that requests an unsupported feature."""
    return InvalidField("unsupported", reason)


def checked(check: Check, schema: JsonSchema | None = None) -> msgspec.Meta:
    """A member's check beyond its type, and its JSON schema."""
    return msgspec.Meta(extra={_CHECK: check}, extra_json_schema=schema)


def documented(schema: JsonSchema) -> msgspec.Meta:
    """The JSON schema of a member that is validated elsewhere."""
    return msgspec.Meta(extra_json_schema=schema)


@dataclass(frozen=True, slots=True)
class _Member:
    """A declared member: its checks and the type of objects in it.

    Attributes:
        integral: it is an integer or a list of integers.
    """

    checks: tuple[Check, ...]
    inner: type[Body] | None
    required: bool
    integral: bool


@cache
def _members(model: type[Body]) -> Mapping[str, _Member]:
    hints = get_type_hints(model, include_extras=True)
    found = {}
    for member in fields(model):
        parts = list(parts_of(hints[member.name]))
        metas = [p for p in parts if isinstance(p, msgspec.Meta)]
        found[member.name] = _Member(
            tuple(m.extra[_CHECK] for m in metas if m.extra),
            next((p for p in parts if isinstance(p, type) and issubclass(p, Body)), None),
            member.required,
            int in parts and float not in parts,
        )
    return found


def bodies_in(model: type[Body]) -> set[type[Body]]:
    """A type of body and the types of all objects nested in it."""
    found, left = set(), {model}
    while left:
        one = left.pop()
        found.add(one)
        inner = {m.inner for m in _members(one).values() if m.inner is not None}
        left |= inner - found
    return found


def fill(
    model: type[Model], document: dict[str, Any], names: dict[str, str] | None = None
) -> Model:
    """Convert decoded JSON into a body; a null for an unknown field means absent.

    Args:
        model: the kind of body.
        document: its members; modified in place: neutral values and unknown nulls are removed,
            aliases are replaced by the declared names.
        names: filled with the name as sent of each member that was sent under an alias.

    Raises:
        InvalidField: naming the member as it was sent.
    """
    names = {} if names is None else names
    try:
        _normalize(model, document, "", names)
        try:
            body = msgspec.convert(document, model, strict=True)
        except msgspec.ValidationError as error:
            raise _rejection(model, InvalidShape.of(str(error))) from None
        _check(body, "")
    except InvalidField as invalid:
        invalid.path = names.get(invalid.path, invalid.path)
        raise
    return body


def _normalize(
    model: type[Body], document: dict[str, Any], path: str, names: dict[str, str]
) -> None:
    """Normalize an object in place to the fields that its model declares."""
    members = _members(model)
    for name in [name for name in document if name not in members]:
        _normalize_other(model, name, document, path, names)
    for name, value in list(document.items()):
        member, known = members[name], model.known.get(name)
        if isinstance(known, Neutral) and value is not None and known.takes(value):
            del document[name]
        elif member.integral:
            document[name] = _as_integers(value)
        elif member.inner is not None:
            for at, part in _objects(value, _inside(path, name)):
                if isinstance(part, dict):
                    _normalize(member.inner, part, at, names)


def _normalize_other(
    model: type[Body], name: str, document: dict[str, Any], path: str, names: dict[str, str]
) -> None:
    """Remove an undeclared field from an object, and apply its table entry."""
    value, at = document.pop(name), _inside(path, name[:64])
    if value is None:
        return
    known = model.known.get(name)
    if known is None:
        raise InvalidField("unknown_parameter", _unknown(model, name), at)
    if not isinstance(known, Group):
        _apply(known, value, at, document, path, names)
        return
    if not isinstance(value, dict):
        raise InvalidField("invalid_type", "expected an object", at)
    for inner, part in value.items():
        inside = _inside(at, inner[:64])
        if part is None:
            continue
        if inner not in known.members:
            reason = f"is not a field this server knows; {at} takes {', '.join(known.members)}"
            raise InvalidField("unknown_parameter", reason, inside)
        _apply(known.members[inner], part, inside, document, path, names)


def _apply(
    known: Neutral | Alias,
    value: Any,
    at: str,
    document: dict[str, Any],
    path: str,
    names: dict[str, str],
) -> None:
    """Drop a neutral value, or move an alias's value to the declared field."""
    if isinstance(known, Neutral):
        if known.takes(value):
            return
        raise InvalidField("unsupported", known.rejection(), at)
    spelled = [meaning for word, meaning in known.values.items() if equal(word, value)]
    if spelled:
        value = spelled[0]
        if value is None:
            return
    elif known.strict:
        words = ", ".join(repr(word) for word in known.values)
        raise InvalidField("invalid_value", f"expected one of {words}", at)
    target = known.target(value)
    if target is None:
        raise InvalidField("invalid_type", "a value of this type is not supported", at)
    other = document.get(target)
    if other is None:
        document[target] = value
        names[_inside(path, target)] = at
    elif not equal(other, value):
        one = names.get(_inside(path, target), _inside(path, target))
        raise InvalidField(
            "invalid_value", f"{at} and {one} mean the same and differ; send one", at
        )


def _as_integers(value: Any) -> Any:
    """Convert integral floats such as ``4.0`` to integers."""
    if type(value) is float and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if type(value) is list and float in set(map(type, value)):
        return [_as_integers(part) for part in value]
    return value


def _unknown(model: type[Body], name: str) -> str:
    meant = closest(name[:64], [*_members(model), *model.known])
    return "is not a field this server knows" + (f"; did you mean {meant}?" if meant else "")


def _check(body: Body, path: str) -> None:
    for name, member in _members(type(body)).items():
        value, at = getattr(body, name), _inside(path, name)
        if value is None:
            if member.required:
                raise _missing(at)
            continue
        try:
            if isinstance(value, float) and not math.isfinite(value):
                raise wrong_value("the number is too large")
            for check in member.checks:
                check(value)
        except InvalidField as invalid:
            invalid.path = at
            raise
        if member.inner is not None:
            for inside, part in _objects(value, at):
                if isinstance(part, Body):
                    _check(part, inside)
    try:
        body.finalize()
    except InvalidField as invalid:
        invalid.path = _inside(path, invalid.path)
        raise


def _objects(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The objects in a member, each with its path."""
    if isinstance(value, list):
        yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
    else:
        yield path, value


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _rejection(model: type[Body], shape: InvalidShape) -> InvalidField:
    if shape.missing:
        return _missing(shape.path)
    words = words_at(model, shape.path)
    reason = f"expected one of {', '.join(map(repr, words))}" if words else shape.reason
    return InvalidField("invalid_type", reason, shape.path)


def _missing(path: str) -> InvalidField:
    return InvalidField("missing_required_parameter", "is required", path)
