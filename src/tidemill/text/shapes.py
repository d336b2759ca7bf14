"""Untyped JSON values into typed structs, with the field named where they do not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from tidemill.base.errors import bad_request

T = TypeVar("T")

# What stands under these keys is the client's own document: a null in it is a value.
_DOCUMENTS = frozenset({"parameters", "schema", "json", "content", "arguments"})
_FIELD = re.compile(r"`([^`]*)`")


def shaped(param: str, value: object, kind: type[T]) -> T:
    """`value` as a `kind` (a msgspec struct or a type made of them); null members are absent.

    Args:
        param: the request's field that holds `value`, for errors.
        value: decoded JSON.
        kind: what it must be; no string is read as a number.

    Raises:
        TidemillError: kind BAD_REQUEST whose `param` is the path of the member that does not fit.
    """
    try:
        return msgspec.convert(_present(value), kind, strict=True)
    except msgspec.ValidationError as error:
        raise _named(param, str(error)) from None


def _present(value: object) -> object:
    if isinstance(value, Mapping):
        return {k: v if k in _DOCUMENTS else _present(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_present(item) for item in value]
    return value


def _named(param: str, message: str) -> Exception:
    reason, _, path = message.partition(" - at `$")
    at = param + path.removesuffix("`")
    if reason.startswith(("Object missing required field", "Object contains unknown field")):
        known = "missing" not in reason
        match = _FIELD.search(reason)
        at = f"{at}.{match[1][:64]}" if match else at
        return bad_request(
            at, f"{at} is not a field this server knows" if known else f"{at} is required"
        )
    if reason.startswith("Invalid value"):
        return bad_request(at, f"{at}: {reason.removeprefix('Invalid value ')}")
    return bad_request(at, f"{at}: {reason[:1].lower()}{reason[1:]}")


def as_json(param: str, value: Any) -> str:
    """The JSON text of a document of the client's, keys in its order.

    Raises:
        TidemillError: kind BAD_REQUEST naming `param` for what JSON cannot write.
    """
    import json

    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise bad_request(param, f"{param} cannot be written as JSON: {error}") from None
