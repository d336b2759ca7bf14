"""Request bodies as structs: what their members may be, and decoded JSON turned into them.

A body is declared once (`server.openai.schema`), as a msgspec struct; that gives its types, the
document of the API (`server.openapi`) and, with `checked`, what types cannot say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import fields

from tidemill.text.shapes import Misfit

# What a member's value must satisfy beyond its type: raises `Unfit`.
Check = Callable[[Any], None]
JsonSchema = dict[str, Any]

_CHECK = "check"
_INDEX = re.compile(r"\[[^\]]*\]")


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of every object in a request body; of members that are not there, or null, None is
    kept."""

    def settle(self) -> None:
        """Last changes and checks that need several members.

        Raises:
            Unfit: they contradict each other.
        """


Model = TypeVar("Model", bound=Body)


class Unfit(Exception):
    """A value that the member it was sent for does not take.

    Attributes:
        code: of the answer's error.
        reason: what is wrong, without the member's name.
        path: of the member, such as ``messages[0].role``; told by whoever knows more of it.
    """

    def __init__(self, code: str, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.code, self.reason, self.path = code, reason, path


def wrong_type(reason: str) -> Unfit:
    """A value of a kind that the member does not take."""
    return Unfit("invalid_type", reason)


def wrong_value(reason: str) -> Unfit:
    """A value of the right kind that means nothing here."""
    return Unfit("invalid_value", reason)


def unsupported(reason: str) -> Unfit:
    """What this version does not do."""
    return Unfit("unsupported", reason)


def checked(check: Check, schema: JsonSchema | None = None) -> msgspec.Meta:
    """A member's check beyond its type, and what the API's document says of it."""
    return msgspec.Meta(extra={_CHECK: check}, extra_json_schema=schema)


def documented(schema: JsonSchema) -> msgspec.Meta:
    """What the API's document says of a member that others check."""
    return msgspec.Meta(extra_json_schema=schema)


@dataclass(frozen=True, slots=True)
class _Member:
    """A declared member: its checks, the kind of object in it, its words if it takes but few."""

    checks: tuple[Check, ...]
    inner: type[Body] | None
    words: tuple[str, ...]
    required: bool


@cache
def _members(model: type[Body]) -> Mapping[str, _Member]:
    hints = get_type_hints(model, include_extras=True)
    found = {}
    for member in fields(model):
        parts = list(_parts(hints[member.name]))
        metas = [p for p in parts if isinstance(p, msgspec.Meta)]
        found[member.name] = _Member(
            tuple(m.extra[_CHECK] for m in metas if m.extra),
            next((p for p in parts if isinstance(p, type) and issubclass(p, Body)), None),
            next((get_args(p) for p in parts if get_origin(p) is Literal), ()),
            member.required,
        )
    return found


def _parts(hint: Any) -> Iterator[Any]:
    """A type and all that it is made of; the words of a literal stay together."""
    yield hint
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
        yield from _parts(hint.__origin__)
    elif get_origin(hint) is not Literal:
        for part in get_args(hint):
            yield from _parts(part)


def fill(model: type[Model], document: dict[str, Any]) -> Model:
    """A body of decoded JSON; null where the model knows no member means absent.

    Args:
        model: the kind of body.
        document: its members; unknown ones that are null are taken out of it.

    Raises:
        Unfit: naming the member.
    """
    _trim(model, document, "")
    try:
        body = msgspec.convert(document, model, strict=True)
    except msgspec.ValidationError as error:
        raise _refusal(model, Misfit.of(str(error))) from None
    _check(body, "")
    return body


def _trim(model: type[Body], document: dict[str, Any], path: str) -> None:
    members = _members(model)
    for name in [name for name in document if name not in members]:
        if document[name] is not None:
            short = name[:64]
            raise Unfit("unknown_parameter", f"{short} is not known", _inside(path, short))
        del document[name]
    for name, value in document.items():
        inner = members[name].inner
        if inner is not None:
            for at, part in _objects(value, _inside(path, name)):
                if isinstance(part, dict):
                    _trim(inner, part, at)


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
        except Unfit as unfit:
            unfit.path = at
            raise
        if member.inner is not None:
            for inside, part in _objects(value, at):
                if isinstance(part, Body):
                    _check(part, inside)
    try:
        body.settle()
    except Unfit as unfit:
        unfit.path = _inside(path, unfit.path)
        raise


def _objects(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What a member holds, one by one, each with its path."""
    if isinstance(value, list):
        yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
    else:
        yield path, value


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _refusal(model: type[Body], misfit: Misfit) -> Unfit:
    if misfit.missing:
        return _missing(misfit.path)
    words = _words(model, misfit.path)
    reason = f"expected one of {', '.join(map(repr, words))}" if words else misfit.reason
    return Unfit("invalid_type", reason, misfit.path)


def _missing(path: str) -> Unfit:
    return Unfit("missing_required_parameter", "is required", path)


def _words(model: type[Body] | None, path: str) -> tuple[str, ...]:
    """The words that the member at `path` is restricted to."""
    member = None
    for name in _INDEX.sub("", path).split("."):
        member = _members(model).get(name) if model else None
        model = member.inner if member else None
    return member.words if member else ()
