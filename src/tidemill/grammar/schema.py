"""JSON schemas, keyword by keyword: enforced, without effect on what is valid, or refused.

llguidance enforces a part of JSON Schema and passes over keywords it does not know. A schema that
it would not honour in full is refused here, with the keyword and its place named; nothing is
relaxed quietly. Covers drafts 4 to 2020-12 (https://json-schema.org/draft/2020-12).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from tidemill.base.errors import TidemillError, bad_request

MAX_DEPTH = 60
MAX_NODES = 20_000
MAX_ENUM = 10_000
"""Levels, values and alternatives a schema may have: what compiles within about 0.1 s."""

# Of one object. Any of the properties that may be left out can come next, and the parser bounds how
# many things can (2,000 items a row, four for a property).
MAX_PROPERTIES = 2_000
MAX_OPTIONAL = 450

# Blanks between the parts of a document: as many as indented documents need, never without end.
WHITESPACE = r"[ \n\r\t]{0,64}"

ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "$comment", "$schema", "$id", "id", "$anchor", "$vocabulary", "contentEncoding",
    "contentMediaType", "contentSchema",
})  # fmt: skip
ENFORCED = frozenset({
    "type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties",
    "items", "prefixItems", "additionalItems", "minItems", "maxItems", "minLength", "maxLength",
    "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "anyOf", "allOf", "oneOf", "$ref", "$defs", "definitions", "minProperties",
    "maxProperties",
})  # fmt: skip
FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip
# llguidance lets every year have a 29th of February and be 0000; a date's first ten characters
# obey this as well (RFC 3339, appendix C; the year from 1 on, as calendars have it).
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_CALENDAR = (
    f"^(?:{_YEAR}-(?:02-(?:[01][0-9]|2[0-8])|(?:0[13-9]|1[0-2])-[0-9]{{2}})"
    f"|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_DATED = ("date", "date-time")
# Keyword -> what to write instead.
REFUSED = {
    "not": "describe what is allowed instead of what is not",
    "if": "use anyOf with one alternative per case",
    "then": "use anyOf with one alternative per case",
    "else": "use anyOf with one alternative per case",
    "contains": "describe the items with items or prefixItems",
    "minContains": "describe the items with items or prefixItems",
    "maxContains": "describe the items with items or prefixItems",
    "propertyNames": "use patternProperties with additionalProperties false",
    "dependentRequired": "use anyOf with one alternative per set of properties",
    "dependentSchemas": "use anyOf with one alternative per set of properties",
    "dependencies": "use anyOf with one alternative per set of properties",
    "unevaluatedProperties": "use additionalProperties in one flat object",
    "unevaluatedItems": "use items with prefixItems",
    "nullable": 'write the type as a list with "null", which is JSON Schema\'s own way',
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
    "$dynamicAnchor": "use $anchor and $ref",
    "$recursiveAnchor": "use $ref",
    "discriminator": "use a const property in each alternative",
}
# Values at which a refused keyword says nothing.
_TRIVIAL: dict[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "nullable": (False,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}),
}
REFUSED["uniqueItems"] = "leave it out and remove duplicates yourself"

_BESIDE_REF = frozenset({"$ref", "$defs", "definitions"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
_ONE = frozenset({"additionalProperties", "additionalItems", "items"})


def prepared(source: str, param: str) -> str:
    """A schema as it is given to the compiler, once all of it is known to be enforceable.

    Args:
        source: JSON text.
        param: the request's field it came from.

    Raises:
        TidemillError: kind BAD_REQUEST whose `param` is the path of the keyword that is not.
    """
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise bad_request(param, f"{param} is not valid JSON: {error}") from None
    kept = _Audit(param).walk(schema, (), 0)
    if kept is True:
        kept = {}
    if not isinstance(kept, dict):
        raise bad_request(param, f"{param}: the schema false allows nothing; no answer obeys it")
    _check_refs(kept, schema, param)
    kept["x-guidance"] = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
    return json.dumps(kept, ensure_ascii=False)


def path_of(param: str, path: tuple[str | int, ...]) -> str:
    """``response_format.json_schema.schema.properties.a``; list places in brackets."""
    text = param
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text[:300]


class _Audit:
    """Walks a schema and copies what of it has an effect."""

    def __init__(self, param: str) -> None:
        self._param = param
        self._nodes = 0
        self._old = False  # a draft in which nothing beside $ref counts

    def refuse(self, path: tuple[str | int, ...], message: str) -> TidemillError:
        at = path_of(self._param, path)
        return bad_request(at, f"{at}: {message}")

    def walk(self, schema: Any, path: tuple[str | int, ...], depth: int) -> Any:
        """The schema without annotations.

        Raises:
            TidemillError: see `prepared`.
        """
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise self.refuse(path, f"the schema is nested deeper than {MAX_DEPTH} levels")
        if self._nodes > MAX_NODES:
            raise self.refuse(path, f"the schema has more than {MAX_NODES} parts")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise self.refuse(path, "a schema is an object or a boolean")
        if not depth:
            self._old = "json-schema.org/draft-0" in str(schema.get("$schema", ""))
        kept: dict[str, Any] = {}
        for key, value in schema.items():
            at = (*path, key)
            if self._old and "$ref" in schema and key in ENFORCED - _BESIDE_REF:
                raise self.refuse(
                    at,
                    f"this draft passes over {key!r} beside $ref and 2020-12 does not; remove it, "
                    "or $schema",
                )
            if key in ANNOTATIONS and not (key in ("id", "$id") and depth):
                if key in ("$schema", "$id", "$anchor"):
                    kept[key] = value
                continue
            if key not in ENFORCED:
                if value in _TRIVIAL.get(key, ()):
                    continue
                raise self._unknown(key, at)
            kept[key] = self._keyword(key, value, at, depth)
        self._count(kept, path)
        if kept.get("format") in _DATED:
            kept["allOf"] = [*kept.get("allOf", ()), {"pattern": _CALENDAR}]
        if "oneOf" in kept and _exclusive(kept["oneOf"]):
            alternatives = kept.pop("oneOf")
            if "anyOf" in kept:
                kept["allOf"] = [*kept.get("allOf", ()), {"anyOf": alternatives}]
            else:
                kept["anyOf"] = alternatives
        return kept

    def _count(self, kept: Mapping[str, Any], path: tuple[str | int, ...]) -> None:
        """Refuse an object with more properties than the parser follows."""
        properties, required = kept.get("properties", {}), kept.get("required", ())
        optional = len(properties.keys() - set(required))
        for count, most, what in (
            (len(properties), MAX_PROPERTIES, "properties"),
            (optional, MAX_OPTIONAL, "properties that are not required"),
        ):
            if count > most:
                raise self.refuse(
                    (*path, "properties"), f"{count} {what} are more than {most} of one object"
                )

    def _unknown(self, key: str, at: tuple[str | int, ...]) -> TidemillError:
        remedy = REFUSED.get(key)
        if remedy is None:
            return self.refuse(at, f"the keyword {key[:64]!r} is not known; leave it out")
        return self.refuse(at, f"the keyword {key!r} cannot be enforced; {remedy}")

    def _keyword(self, key: str, value: Any, at: tuple[str | int, ...], depth: int) -> Any:
        if key in _MAPS:
            if not isinstance(value, Mapping):
                raise self.refuse(at, f"{key} must be an object")
            return {k: self.walk(v, (*at, k), depth + 1) for k, v in value.items()}
        if key in _LISTS or (key == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise self.refuse(at, f"{key} must be a list")
            return [self.walk(v, (*at, i), depth + 1) for i, v in enumerate(value)]
        if key in _ONE:
            return self.walk(value, at, depth + 1)
        check = _CHECKS.get(key)
        if check is not None and (reason := check(value)) is not None:
            raise self.refuse(at, f"{key}: {reason}")
        self._nodes += _size(value)
        return value


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _check_enum(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return "a list of at least one value is expected"
    if len(value) > MAX_ENUM:
        return f"{len(value)} values are more than {MAX_ENUM}"
    return None


def _check_format(value: Any) -> str | None:
    if value in FORMATS:
        return None
    return (
        f"the format {str(value)[:64]!r} cannot be enforced; known are {', '.join(sorted(FORMATS))}"
    )


def _check_multiple(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return "a number above 0 is expected"
    denominator = Fraction(str(value)).denominator
    if denominator & (denominator - 1):
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


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "enum": _check_enum,
    "format": _check_format,
    "multipleOf": _check_multiple,
    "pattern": _check_pattern,
    "required": _check_required,
    **dict.fromkeys(
        ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
        _check_count,
    ),
}


def _exclusive(alternatives: list[Any]) -> bool:
    """Some property tells every two alternatives apart: required, with values that share nothing.

    Then one of them at least and one of them exactly are the same.
    """
    if not all(isinstance(a, Mapping) and a.get("type") == "object" for a in alternatives):
        return False
    tags = [_tags(a) for a in alternatives]
    for name in set.intersection(*(set(t) for t in tags)) if tags else ():
        values = [json.dumps(v, sort_keys=True) for t in tags for v in t[name]]
        if len(set(values)) == len(values):
            return True
    return False


def _tags(schema: Mapping[str, Any]) -> dict[str, list[Any]]:
    found = {}
    for name in schema.get("required", ()):
        part = schema.get("properties", {}).get(name)
        if isinstance(part, Mapping):
            if "const" in part:
                found[name] = [part["const"]]
            elif isinstance(part.get("enum"), list):
                found[name] = part["enum"]
    return found


def _check_refs(kept: Any, whole: Any, param: str) -> None:
    for path, ref in _refs(kept, ()):
        at = path_of(param, (*path, "$ref"))
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise bad_request(
                at, f"{at}: only references into the schema itself (#...) are followed"
            )
        if ref.startswith("#/") and not _resolves(whole, ref):
            raise bad_request(at, f"{at}: nothing is at {ref[:100]!r}")


def _refs(node: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(node, Mapping):
        if "$ref" in node and not (path and path[-1] == "properties"):
            yield path, node["$ref"]
        for key, value in node.items():
            if key not in ("enum", "const"):
                yield from _refs(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _refs(value, (*path, index))


def _resolves(whole: Any, ref: str) -> bool:
    node = whole
    for step in ref[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~").replace("%25", "%")
        if isinstance(node, Mapping) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return False
    return True


def patterns(schema: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every regular expression in a schema, with its place below the schema."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("pattern"), str) and (not path or path[-1] != "properties"):
            yield path_of("", (*path, "pattern")), schema["pattern"]
        if isinstance(schema.get("patternProperties"), Mapping):
            for name in schema["patternProperties"]:
                yield path_of("", (*path, "patternProperties", name)), name
        for key, value in schema.items():
            if key not in ("enum", "const"):
                yield from patterns(value, (*path, key))
    elif isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from patterns(value, (*path, index))
