"""Converts untyped JSON values to typed structs; errors name the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from tidemill.base.errors import TidemillError, bad_request

T = TypeVar("T")

# The values of these keys are the client's documents: a null in them is a value.
_DOCUMENTS = frozenset({"parameters", "schema", "json", "content", "arguments"})
_INDEX = re.compile(r"\[[^\]]*\]")
_FIELD = re.compile(r"`([^`]*)`")


def shaped(param: str, value: object, kind: type[T]) -> T:
    """`value` as a `kind` (a msgspec struct or a type made of them); null members are absent.

    Args:
        param: the request's field that holds `value`, for errors.
        value: decoded JSON.
        kind: the required type; strings are not converted to numbers.

    Raises:
        TidemillError: kind BAD_REQUEST whose `param` is the path of the member that does not fit.
    """
    try:
        return msgspec.convert(_present(value), kind, strict=True)
    except msgspec.ValidationError as error:
        raise _named(param, str(error), kind) from None


def _present(value: object) -> object:
    if isinstance(value, Mapping):
        return {k: v if k in _DOCUMENTS else _present(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_present(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class InvalidShape:
    """A parsed msgspec validation error.

    Attributes:
        path: of the member relative to the value, such as ``messages[0].role``.
        missing, unknown: a required member is absent; the member is not a known field.
        reason: otherwise, the error.
    """

    path: str
    missing: bool
    unknown: bool
    reason: str

    @staticmethod
    def of(message: str) -> InvalidShape:
        """Parse the text of a `msgspec.ValidationError`, which has no structured form."""
        reason, _, path = message.partition(" - at `$")
        path = path.removesuffix("`").removeprefix(".")
        missing = reason.startswith("Object missing required field")
        unknown = reason.startswith("Object contains unknown field")
        if (missing or unknown) and (match := _FIELD.search(reason)):
            path = f"{path}.{match[1][:64]}".removeprefix(".")
        reason = reason.removeprefix("Invalid value ")
        return InvalidShape(path, missing, unknown, f"{reason[:1].lower()}{reason[1:]}")


def words_at(kind: object, path: str) -> tuple[str, ...]:
    """The literal strings that a member may be; empty if its type is not a literal.

    Args:
        kind: a msgspec struct, or a type made of them.
        path: of the member, such as ``messages[0].role``.
    """
    parts = list(parts_of(kind))
    for name in filter(None, _INDEX.sub("", path).split(".")):
        hints = [get_type_hints(part, include_extras=True) for part in parts if _is_struct(part)]
        parts = [inner for found in hints if name in found for inner in parts_of(found[name])]
    return tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))


def parts_of(hint: Any) -> Iterator[Any]:
    """A type and its component types, recursively; a literal is one component."""
    yield hint
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
        yield from parts_of(hint.__origin__)
    elif get_origin(hint) is not Literal:
        for part in get_args(hint):
            yield from parts_of(part)


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _named(param: str, message: str, kind: object) -> TidemillError:
    invalid = InvalidShape.of(message)
    inside = invalid.path if invalid.path.startswith("[") else f".{invalid.path}"
    at = param + inside if invalid.path else param
    if invalid.unknown:
        return bad_request(at, f"{at} is not a field this server knows")
    if invalid.missing:
        return bad_request(at, f"{at} is required")
    words = words_at(kind, invalid.path)
    reason = f"expected one of {', '.join(map(repr, words))}" if words else invalid.reason
    return bad_request(at, f"{at}: {reason}")


def as_json(param: str, value: Any) -> str:
    """The JSON text of a client's document, with its key order.

    Raises:
        TidemillError: kind BAD_REQUEST naming `param` for values that JSON cannot represent.
    """
    import json

    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise bad_request(param, f"{param} cannot be written as JSON: {error}") from None
