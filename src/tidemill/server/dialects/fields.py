"""Request fields beyond their types, as data: neutral values and aliases.

Promise 2 says that no field is silently ignored. Clients often send all fields at their defaults,
so a value that requests what this server does anyway is accepted. A dialect defines one table per
kind of body, from a field's name to a `Neutral` or an `Alias`. `server.dialects.members` applies it
to a body; the OpenAPI document and docs/api.md are generated from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

JsonSchema = dict[str, Any]

ANY = object
"""In `Neutral.kinds`: values of every type."""

_TYPE_NAMES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


@dataclass(frozen=True, slots=True)
class Neutral:
    """A field some of whose values have no effect; those are removed from the body.

    For a field that the body declares, they mean the same as its absence. For any other field,
    all other values are rejected.

    Attributes:
        values: the values without effect; numbers equal only numbers.
        kinds: types whose values all have no effect (`float` includes integers).
        feature: the feature that other values request, a noun.
        instead: the remedy, a clause.
        test: predicate, where a list of values does not suffice.
        shown: the values that `test` accepts, in words.
    """

    values: tuple[Any, ...] = ()
    kinds: tuple[type, ...] = ()
    feature: str = ""
    instead: str = ""
    test: Callable[[Any], bool] | None = None
    shown: str = ""

    def takes(self, value: Any) -> bool:
        """True when the value has no effect."""
        if self.kinds and _is_one_of(value, self.kinds):
            return True
        if any(equal(value, known) for known in self.values):
            return True
        return self.test is not None and self.test(value)

    def rejection(self) -> str:
        """The message for other values, without the field's name."""
        known = self.described()
        taken = f"; {known} is accepted because it changes nothing" if known else ""
        instead = f"; {self.instead}" if self.instead else ""
        return f"this server does not support {self.feature or 'it'}{taken}{instead}"

    def described(self) -> str:
        """The accepted values, as text."""
        kinds = ["anything" if k is ANY else f"any {_TYPE_NAMES[k]}" for k in self.kinds]
        texts = [_json(value) for value in self.values]
        return " or ".join([*texts, *kinds, *([self.shown] if self.shown else [])])

    def schema(self) -> JsonSchema:
        """The accepted values, including null, as a JSON schema."""
        if ANY in self.kinds:
            return {}
        if self.test is not None:
            return {"description": f"neutral: {self.described()}"}
        found: list[JsonSchema] = [{"enum": [*self.values, None]}]
        found += [{"type": _TYPE_NAMES[kind]} for kind in self.kinds]
        return found[0] if len(found) == 1 else {"anyOf": found}


@dataclass(frozen=True, slots=True)
class Alias:
    """An alias of a declared field.

    Attributes:
        to: the declared field, or one for each type of value.
        values: maps values to canonical ones; None means absent.
        strict: values that are not in `values` are rejected.
    """

    to: str | Mapping[type, str]
    values: Mapping[Any, Any] = field(default_factory=dict)
    strict: bool = False

    def target(self, value: Any) -> str | None:
        """The declared field for a value; None if there is none for its type."""
        if isinstance(self.to, str):
            return self.to
        return next((name for kind, name in self.to.items() if type(value) is kind), None)

    def targets(self) -> tuple[str, ...]:
        """All declared fields that the alias can stand for."""
        return (self.to,) if isinstance(self.to, str) else tuple(self.to.values())


@dataclass(frozen=True, slots=True)
class Group:
    """An object with its own table of members, such as ``{"effort": "low"}``."""

    members: Mapping[str, Neutral | Alias]


Known: TypeAlias = Neutral | Alias | Group
Fields: TypeAlias = Mapping[str, Known]

NO_FIELDS: Fields = {}


def schema_of(known: Known, members: Mapping[str, JsonSchema]) -> JsonSchema:
    """The JSON schema of a field that the body does not declare.

    Args:
        known: its table entry.
        members: schemas of the declared fields; aliases reuse them.
    """
    if isinstance(known, Neutral):
        return known.schema()
    if isinstance(known, Alias):
        spelled: list[JsonSchema] = [{"enum": list(known.values)}] if known.values else []
        same = [] if known.strict else [members[name] for name in known.targets()]
        return {"anyOf": [*spelled, *same, {"type": "null"}]}
    inner = {name: schema_of(part, members) for name, part in known.members.items()}
    shape = {"type": "object", "properties": inner, "additionalProperties": False}
    return {"anyOf": [shape, {"type": "null"}]}


def equal(one: Any, other: Any) -> bool:
    """JSON equality: ``1`` is ``1.0``, and ``true`` is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _is_one_of(value: Any, kinds: Iterable[type]) -> bool:
    for kind in kinds:
        if kind is ANY or type(value) is kind or (kind is float and type(value) is int):
            return True
    return False


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to `name`, or None."""
    from difflib import get_close_matches  # errors alone need it

    plain = {k.replace("_", "").lower(): k for k in known}
    found = get_close_matches(name.replace("_", "").lower(), plain, n=1, cutoff=0.75)
    return plain[found[0]] if found else None


def _json(value: Any) -> str:
    import json

    return json.dumps(value)
