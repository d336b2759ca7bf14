"""The first pass: classifies every keyword, drops annotations, makes numbers exact.

Rewriting that needs resolved references is left to the second pass (`lowering`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from tidemill.base.errors import TidemillError
from tidemill.grammar.schema import formats, keywords, lookaround, numbers
from tidemill.grammar.schema.automaton import Budget
from tidemill.grammar.schema.paths import Path, rejected
from tidemill.grammar.schema.values import comparable, kinds_of


class Audit:
    """Copies a schema without annotations; each subschema becomes a separate object.

    Args:
        param: the request's field that holds the schema.
    """

    def __init__(self, param: str) -> None:
        self._param = param
        self._nodes = 0
        self._budget = Budget()
        self._plain: dict[str, list[str]] = {}  # pattern with look-around -> equivalent patterns
        self._old = False  # a draft in which keywords next to $ref are ignored
        self.references = False
        """A subschema has a reference."""
        self.never = False
        """A subschema is false, other than to forbid additional properties or items."""

    def _rejected(self, path: Path, message: str) -> TidemillError:
        return rejected(self._param, path, message)

    def walk(self, schema: Any, path: Path, depth: int) -> Any:
        """The schema without annotations.

        Raises:
            TidemillError: see `prepared`.
        """
        self._nodes += 1
        if depth > keywords.MAX_DEPTH:
            raise self._rejected(
                path, f"the schema is nested deeper than {keywords.MAX_DEPTH} levels"
            )
        if self._nodes > keywords.MAX_NODES:
            raise self._rejected(path, f"the schema has more than {keywords.MAX_NODES} parts")
        if isinstance(schema, bool):
            self.never |= not schema and path[-1:] not in _NO_MORE
            return schema
        if not isinstance(schema, Mapping):
            raise self._rejected(path, "a schema is an object or a boolean")
        # Go and others write null for a keyword that is not set; of `const` it is a value.
        if None in schema.values():
            schema = {k: v for k, v in schema.items() if v is not None or k == "const"}
        if not depth:
            self._old = "json-schema.org/draft-0" in str(schema.get("$schema", ""))
        self.references |= "$ref" in schema
        kept: dict[str, Any] = {}
        for key, value in schema.items():
            at = (*path, key)
            if self._old and "$ref" in schema and key in keywords.ENFORCED - keywords.REF_SIBLINGS:
                raise self._rejected(
                    at,
                    f"this draft ignores {key!r} next to $ref, but 2020-12 does not; remove it, or "
                    "$schema",
                )
            if keywords.is_annotation(key) and not (key in ("id", "$id") and depth):
                if key in ("$schema", "$id", "$anchor"):
                    kept[key] = value
                continue
            if key in keywords.TRIVIAL and any(
                value is t or (value == t == {}) for t in keywords.TRIVIAL[key]
            ):
                continue
            if key not in keywords.ENFORCED:
                raise self._unknown(key, at)
            kept[key] = self._keyword(key, value, at, depth)
        return self._exact(kept, schema, path)

    def _unknown(self, key: str, at: Path) -> TidemillError:
        remedy = keywords.REJECTED.get(key)
        if remedy is None:
            return self._rejected(at, f"the keyword {key[:64]!r} is not known; leave it out")
        return self._rejected(at, f"the keyword {key!r} cannot be enforced; {remedy}")

    def _keyword(self, key: str, value: Any, at: Path, depth: int) -> Any:
        if key in keywords.MAPS:
            if not isinstance(value, Mapping):
                raise self._rejected(at, f"{key} must be an object")
            return {k: self.walk(v, (*at, k), depth + 1) for k, v in value.items()}
        if key in keywords.LISTS or (key == "items" and isinstance(value, list)):
            if not isinstance(value, list) or (not value and key in ("anyOf", "allOf", "oneOf")):
                raise self._rejected(at, f"{key} must be a list of at least one schema")
            if key == "allOf" and len(value) > keywords.MAX_ALL_OF:
                raise self._rejected(at, f"{len(value)} parts are more than {keywords.MAX_ALL_OF}")
            return [self.walk(v, (*at, i), depth + 1) for i, v in enumerate(value)]
        if key in keywords.ONE:
            return self.walk(value, at, depth + 1)
        check = _CHECKS.get(key)
        if check is not None and (reason := check(value)) is not None:
            raise self._rejected(at, f"{key}: {reason}")
        self._nodes += len(value) if isinstance(value, list | dict) else 0
        return value

    def _exact(self, kept: dict[str, Any], schema: Mapping[str, Any], path: Path) -> Any:
        """Rewrite the combined keywords of one schema to keywords that are enforced exactly."""
        if kept.pop("nullable", False):
            self._nullable(kept, path)
        integers = None
        if "format" in kept:
            if (reason := formats.check(schema)) is not None:
                raise self._rejected((*path, "format"), f"format: {reason}")
            integers = formats.integer_bounds(kept["format"])
            formats.lowered(kept)
        try:
            numbers.bounded(kept, integers)
        except numbers.Inexact as error:
            raise self._rejected((*path, error.keyword), f"{error.keyword}: {error}") from None
        if "pattern" in kept and lookaround.is_needed(kept["pattern"]):
            self._pattern(kept, path)
        if "not" in kept and not self._negated(kept, path):
            self.never = True
            return False
        return kept

    def _nullable(self, kept: dict[str, Any], path: Path) -> None:
        """OpenAPI 3.0: null is added to the types; without types the keyword has no meaning."""
        types = kept.get("type")
        if types is None:
            raise self._rejected(
                (*path, "nullable"), 'has an effect only next to type; use anyOf with "null"'
            )
        types = [types] if isinstance(types, str) else list(types)
        kept["type"] = types if "null" in types else [*types, "null"]

    def _pattern(self, kept: dict[str, Any], path: Path) -> None:
        pattern = kept["pattern"]
        try:
            if pattern not in self._plain:
                self._plain[pattern] = lookaround.without(pattern, self._budget)
        except lookaround.Unsupported as error:
            raise self._rejected((*path, "pattern"), f"pattern: {error}") from None
        first, *more = self._plain[pattern]
        kept["pattern"] = first
        if more:
            kept["allOf"] = [*kept.get("allOf", ()), *({"pattern": p} for p in more)]

    def _negated(self, kept: dict[str, Any], path: Path) -> bool:
        """Apply a negation of types or values; False if no value is left."""
        negated = kept.pop("not")
        if negated is False:
            return True
        if negated is True or not negated:
            return False
        if negated.keys() == {"type"}:
            gone = {negated["type"]} if isinstance(negated["type"], str) else set(negated["type"])
            own = kept.get("type", [t for t in keywords.TYPES if t != "integer"])
            own = [own] if isinstance(own, str) else list(own)
            if "number" in gone:
                gone.add("integer")
            if not ("integer" in gone and "number" in own and "number" not in gone):
                kept["type"] = [kind for kind in own if kind not in gone]
                return bool(kept["type"])
        elif negated.keys() <= {"const", "enum", "type"} and "enum" in kept:
            out = [negated["const"]] if "const" in negated else negated["enum"]
            if "const" in negated and "enum" in negated:
                out = [value for value in out if value in negated["enum"]]
            if "type" not in negated or all(negated["type"] in kinds_of(v) for v in out):
                gone = {comparable(value) for value in out}
                kept["enum"] = [v for v in kept["enum"] if comparable(v) not in gone]
                return bool(kept["enum"])
        raise self._rejected(
            (*path, "not"),
            "the keyword 'not' cannot be enforced; describe what is allowed instead of what is not",
        )


_NO_MORE = (("additionalProperties",), ("additionalItems",), ("items",))


def _check_type(value: Any) -> str | None:
    known = value if isinstance(value, list) else [value]
    if known and all(isinstance(kind, str) and kind in keywords.TYPES for kind in known):
        return None
    return f"{str(value)[:64]!r} is not a type; known are {', '.join(keywords.TYPES)}"


def _check_enum(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return "a list of at least one value is expected"
    if len(value) > keywords.MAX_ENUM:
        return f"{len(value)} values are more than {keywords.MAX_ENUM}"
    return numbers.check_constant(value)


def _check_multiple(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return "a number above 0 is expected"
    if value >= 2**32 or not numbers.is_read_exactly(float(value)):
        return "a number below 2^32 of at most 15 digits can be enforced"
    fraction = Fraction(str(value))
    if fraction.denominator & (fraction.denominator - 1):
        return (
            f"no floating-point number is exactly a multiple of {value}; use an integer (cents "
            "instead of 0.01)"
        )
    return None


def _check_pattern(value: Any) -> str | None:
    return None if isinstance(value, str) else "a string is expected"


def _check_required(value: Any) -> str | None:
    fine = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return None if fine else "a list of names is expected"


def _check_count(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1:
        return "a whole number of at least 0 is expected"
    return None


def _check_flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false is expected"


def _check_discriminator(value: Any) -> str | None:
    fine = isinstance(value, Mapping) and isinstance(value.get("propertyName"), str)
    return None if fine else "an object with propertyName is expected"


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "type": _check_type,
    "enum": _check_enum,
    "const": numbers.check_constant,
    "multipleOf": _check_multiple,
    "pattern": _check_pattern,
    "required": _check_required,
    "uniqueItems": _check_flag,
    "nullable": _check_flag,
    "discriminator": _check_discriminator,
    **dict.fromkeys(
        ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
        _check_count,
    ),
}
