"""JSON schemas to try constrained output on: drawn ones, real ones, the test suite's."""

from __future__ import annotations

import json
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORDS = [
    "name", "id", "count", "tags", "price", "size", "unit", "street", "city", "zip", "start", "end",
    "kind", "items", "total", "note",
]  # fmt: skip


@dataclass
class Case:
    """A schema, where it is from, and instances known to be valid, in the schema's key order."""

    source: str
    schema: Any
    valid: list[Any] = field(default_factory=list)


class Drawer:
    """Draws schemas of every enforced keyword, each with a valid instance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def case(self) -> Case:
        schema, instance = self.draw(3)
        return Case("drawn", schema, [instance])

    def draw(self, depth: int) -> tuple[Any, Any]:
        kinds = [self.string, self.string, self.integer, self.number, self.fixed, self.plain]
        if depth:
            kinds += [self.object, self.object, self.object, self.array, self.either, self.tuple]
            kinds += [self.tagged, self.map]
        return self.rng.choice(kinds)(depth)

    def plain(self, depth: int) -> tuple[Any, Any]:
        kind, value = self.rng.choice([("boolean", True), ("null", None), ("boolean", False)])
        return {"type": kind, "description": "plain"}, value

    def string(self, depth: int) -> tuple[Any, Any]:
        low = self.rng.randint(0, 4)
        text = "".join(self.rng.choice('abcö ß漢"\\/é\n') for _ in range(low + 2))
        options: list[tuple[Any, Any]] = [
            ({"type": "string"}, text),
            ({"type": "string", "minLength": low, "maxLength": low + 3}, text),
            ({"type": "string", "pattern": "^[a-z]{2,5}-[0-9]+$"}, "abc-12"),
            ({"type": "string", "pattern": "x"}, "axb"),
            ({"type": "string", "format": "date"}, "2026-11-21"),
            ({"type": "string", "format": "date-time"}, "2026-11-21T10:00:00Z"),
            ({"type": "string", "format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000"),
            ({"type": "string", "format": "email"}, "a@example.com"),
            ({"type": "string", "format": "ipv4"}, "192.168.0.1"),
            ({"type": "string", "format": "time"}, "12:30:00.5Z"),
            (
                {"type": "string", "pattern": r"^(?!\s*$).+"},
                f"x{text}" if "\n" not in text else "x",
            ),
            ({"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, "-12.50"),
            ({"type": "string", "pattern": r"^(?=.*[a-z])(?=.*\d).{3,9}$"}, "ab1"),
            ({"type": "string", "pattern": r"^(?!-)[a-z-]{1,9}(?<!-)$"}, "a-b"),
        ]
        return self.rng.choice(options)

    def integer(self, depth: int) -> tuple[Any, Any]:
        low = self.rng.randint(-50, 50)
        high = low + self.rng.randint(0, 500)
        step = self.rng.choice([2, 3, 5, 10])
        options: list[tuple[Any, Any]] = [
            ({"type": "integer"}, low),
            ({"type": "integer", "minimum": low, "maximum": high}, high),
            ({"type": "integer", "exclusiveMinimum": low - 1, "maximum": high}, low),
            ({"type": "integer", "multipleOf": step}, 4 * step),
            ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, 1234567890123456789),
            ({"type": "integer", "format": "int32"}, -(2**31)),
            ({"type": "integer", "exclusiveMinimum": 2**53 + low}, 2**53 + 2000),
        ]
        return self.rng.choice(options)

    def number(self, depth: int) -> tuple[Any, Any]:
        low = self.rng.randint(-20, 20) / 4
        options: list[tuple[Any, Any]] = [
            ({"type": "number"}, 1.25),
            ({"type": "number", "minimum": low, "maximum": low + 2.5}, low + 0.25),
            ({"type": "number", "exclusiveMaximum": low}, low - 1.5),
            ({"type": "number", "minimum": low, "exclusiveMaximum": low + 0.15}, low + 0.125),
            ({"type": "number", "exclusiveMinimum": -0.375, "maximum": 2.625}, 2.5),
        ]
        return self.rng.choice(options)

    def fixed(self, depth: int) -> tuple[Any, Any]:
        values = self.rng.sample([1, "a", "b c", None, True, 2.5, "ü"], self.rng.randint(1, 4))
        if len(values) == 1:
            return {"const": values[0]}, values[0]
        return {"enum": values}, values[-1]

    def object(self, depth: int) -> tuple[Any, Any]:
        names = self.rng.sample(WORDS, self.rng.randint(1, 5))
        parts = {name: self.draw(depth - 1) for name in names}
        required = [n for n in names if self.rng.random() < 0.6]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: part[0] for name, part in parts.items()},
            "required": required,
        }
        roll = self.rng.random()
        if roll < 0.6:
            schema["additionalProperties"] = False
        elif roll < 0.75:
            schema["additionalProperties"] = {"type": "integer"}
        kept = {n: p[1] for n, p in parts.items() if n in required or self.rng.random() < 0.5}
        return schema, kept

    def tagged(self, depth: int) -> tuple[Any, Any]:
        """oneOf told apart by a constant."""
        parts = [self.draw(depth - 1) for _ in range(self.rng.randint(2, 3))]
        schema = {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": f"k{i}"}, "value": part[0]},
                    "required": ["kind", "value"],
                    "additionalProperties": False,
                }
                for i, part in enumerate(parts)
            ],
            "discriminator": {"propertyName": "kind"},
        }
        return schema, {"kind": "k1", "value": parts[1][1]}

    def map(self, depth: int) -> tuple[Any, Any]:
        """A map with an enum's names, or a set of an enum's values."""
        names = sorted(self.rng.sample(WORDS, self.rng.randint(2, 6)))
        if self.rng.random() < 0.5:
            items = {"type": "string", "enum": names}
            return {"type": "array", "items": items, "uniqueItems": True}, names[:2]
        schema, instance = self.draw(depth - 1)
        made = {"type": "object", "propertyNames": {"enum": names}, "additionalProperties": schema}
        return made, dict.fromkeys(names[1:3], instance)

    def array(self, depth: int) -> tuple[Any, Any]:
        schema, instance = self.draw(depth - 1)
        low = self.rng.randint(0, 2)
        made: dict[str, Any] = {"type": "array", "items": schema}
        if self.rng.random() < 0.6:
            made |= {"minItems": low, "maxItems": low + 2}
        return made, [instance] * (low + 1)

    def tuple(self, depth: int) -> tuple[Any, Any]:
        parts = [self.draw(depth - 1) for _ in range(self.rng.randint(1, 3))]
        schema = {
            "type": "array",
            "prefixItems": [p[0] for p in parts],
            "items": False,
            "minItems": len(parts),
        }
        return schema, [p[1] for p in parts]

    def either(self, depth: int) -> tuple[Any, Any]:
        parts = [self.draw(depth - 1) for _ in range(2)]
        if self.rng.random() < 0.3:
            definitions = {"part": parts[0][0]}
            return {"$defs": definitions, "anyOf": [{"$ref": "#/$defs/part"}, parts[1][0]]}, parts[
                1
            ][1]
        return {"anyOf": [p[0] for p in parts]}, parts[0][1]


def drawn(count: int, seed: int = 1) -> Iterator[Case]:
    """`count` drawn cases; references only where they stay valid."""
    drawer = Drawer(seed)
    found = 0
    while found < count:
        case = drawer.case()
        if _nested_defs(case.schema, top=True):
            continue
        found += 1
        yield case


def _nested_defs(schema: Any, *, top: bool) -> bool:
    """`$defs` below the root would not be where "#/$defs" points to."""
    if isinstance(schema, dict):
        if "$defs" in schema and not top:
            return True
        return any(_nested_defs(v, top=False) for v in schema.values())
    return isinstance(schema, list) and any(_nested_defs(v, top=False) for v in schema)


# Numbers where doubles, 64 bits and the writing of decimals end.
EDGES = [
    *(0, 0, 1, -1, 2, 3, 12, 0.5, 0.25, 0.1, 2.25, -0.75, 1.5, 99.99, 0.30000000000000004, 1e-7),
    *(2**31, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, 2**63, -(2**63)),
    *(10**18, 10**19, 1e30),
]
_NAMES = ["a", "b", "c", "kind"]
_PATTERNS = [
    r"^(?!\s*$).+", r"^[a-c]{1,3}$", "b", r"^(?=.*\d)[a-z\d]{2,4}$", "^a|b$", r"^(?!ab)[ab]{1,3}$",
]  # fmt: skip
_FORMATS = ["date", "time", "uuid", "int32", "path", "base64", "date-time", "uint8", "email"]
_BOUNDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
_COUNTS = ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"]
_GOES_WITH: dict[str, tuple[str, ...]] = {
    **dict.fromkeys([*_BOUNDS, "multipleOf"], ("integer", "number")),
    **dict.fromkeys(["properties", "required", "propertyNames"], ("object",)),
    **dict.fromkeys(["items", "prefixItems", "uniqueItems"], ("array",)),
    **dict.fromkeys(["pattern", "format", "minLength"], ("string",)),
}
_KEYS = [
    *("type", "enum", "const", "properties", "properties", "required", "additionalProperties"),
    *("items", "prefixItems", "uniqueItems", "pattern", "format", "anyOf", "oneOf", "oneOf"),
    *("allOf", "$ref", "propertyNames", "patternProperties", "not", *_BOUNDS, *_COUNTS),
]


class Composer:
    """Composes schemas of any keywords whatever they mean together: most are not to be honoured."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def case(self) -> Case:
        schema = self.schema(3)
        if self.rng.random() < 0.5:
            schema["$defs"] = {"x": self.schema(2), "y": self.schema(1)}
        return Case("composed", schema)

    def schema(self, depth: int) -> dict[str, Any]:
        if not depth:
            kinds = [{"type": "integer"}, {"type": "string"}, {"type": "null"}, {"const": 1}]
            return dict(self.rng.choice(kinds))
        made: dict[str, Any] = {}
        for _ in range(self.rng.randint(1, 3)):
            key = self.rng.choice(_KEYS)
            made[key] = self._value(key, depth - 1)
            if key in _GOES_WITH and "type" not in made and self.rng.random() < 0.8:
                made["type"] = self.rng.choice(_GOES_WITH[key])
        return made

    def _value(self, key: str, depth: int) -> Any:
        rng = self.rng
        if key == "type":
            kinds = ["string", "integer", "number", "object", "array", "boolean", "null"]
            return rng.choice([*kinds, ["string", "null"], ["integer", "object"]])
        if key == "enum":
            return [self._constant() for _ in range(rng.randint(1, 4))]
        if key == "const":
            return self._constant()
        if key in ("properties", "patternProperties"):
            names = _NAMES if key == "properties" else ["^a", "b$", "^k"]
            return {name: self.schema(depth) for name in rng.sample(names, rng.randint(1, 3))}
        if key == "required":
            return rng.sample(_NAMES, rng.randint(1, 2))
        if key == "additionalProperties":
            return rng.choice([False, False, True, self.schema(depth)])
        if key in ("items", "propertyNames", "not"):
            return self.schema(depth)
        if key in ("prefixItems", "anyOf", "oneOf", "allOf"):
            return [self.schema(depth) for _ in range(rng.randint(1, 3))]
        if key in _COUNTS:
            return rng.randint(0, 3)
        if key in _BOUNDS:
            return rng.choice(EDGES)
        choices: dict[str, list[Any]] = {
            "uniqueItems": [True],
            "pattern": _PATTERNS,
            "format": _FORMATS,
            "$ref": ["#", "#/$defs/x", "#/$defs/y"],
        }
        return rng.choice(choices[key])

    def _constant(self) -> Any:
        values: list[Any] = [None, True, 1, 1.0, "a", "b", "kind", [1], {"a": 1}]
        return self.rng.choice([*values, self.rng.choice(EDGES)])


def composed(count: int, seed: int = 1) -> Iterator[Case]:
    """`count` composed cases."""
    composer = Composer(seed)
    return (composer.case() for _ in range(count))


def served() -> Iterator[Case]:
    """The components of our own OpenAPI document, each as a schema of its own."""
    import msgspec

    from tidemill.server.dialects.members import Body
    from tidemill.server.dialects.openai import schema as bodies

    for model in vars(bodies).values():
        if isinstance(model, type) and issubclass(model, Body) and model is not Body:
            yield Case("OpenAPI", msgspec.json.schema(model))


def packages() -> Iterator[Case]:
    """Shapes of package metadata, configuration and events as people write them."""
    text = {"type": "string"}
    strings = {"type": "array", "items": text}
    version = {"type": "string", "pattern": r"^[0-9]+\.[0-9]+\.[0-9]+$"}
    yield Case(
        "package",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z][a-z0-9-]*$"},
                "version": version,
                "private": {"type": "boolean"},
                "keywords": strings,
                "dependencies": {"type": "object", "additionalProperties": text},
                "author": {
                    "anyOf": [
                        text,
                        {
                            "type": "object",
                            "properties": {"name": text, "email": {**text, "format": "email"}},
                            "required": ["name"],
                        },
                    ]
                },
            },
            "required": ["name", "version"],
        },
        [{"name": "a-b", "version": "1.2.3", "keywords": ["x"], "dependencies": {"c": "^1"}}],
    )
    point = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}
    yield Case(
        "GeoJSON",
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"type": {"const": kind}, "coordinates": shape},
                    "required": ["type", "coordinates"],
                    "additionalProperties": False,
                }
                for kind, shape in (
                    ("Point", point),
                    ("LineString", {"type": "array", "items": point, "minItems": 2}),
                )
            ]
        },
        [{"type": "Point", "coordinates": [1.5, 2]}],
    )


# The suite leaves these unsaid; without them a schema is read as 2020-12.
_DIALECTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
}


def suite(archive: Path) -> Iterator[Case]:
    """The JSON-Schema-Test-Suite as it lies in the jsonschema source distribution."""
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            if "/json/tests/draft" not in member.name or not member.name.endswith(".json"):
                continue
            if "draft3" in member.name or "/optional/" in member.name:
                continue
            handle = tar.extractfile(member)
            assert handle is not None
            for group in json.load(handle):
                draft = member.name.split("/json/tests/")[1].split("/")[0]
                # There formats are annotations; here they are enforced.
                known = not member.name.endswith("/format.json")
                valid = [t["data"] for t in group["tests"] if t["valid"] and known]
                schema = group["schema"]
                if isinstance(schema, dict) and draft in _DIALECTS:
                    schema = {"$schema": _DIALECTS[draft], **schema}
                yield Case(draft, schema, [ordered(v, schema) for v in valid])


def ordered(value: Any, schema: Any) -> Any:
    """An instance with the keys of its objects in the schema's order, as far as it names them."""
    if not isinstance(schema, dict):
        return value
    if "const" in schema and schema["const"] == value:
        return schema["const"]
    if isinstance(value, dict):
        properties: dict[str, Any] = {}
        for part in (schema, *(p for p in schema.get("allOf", []) if isinstance(p, dict))):
            found = part.get("properties")
            properties |= found if isinstance(found, dict) else {}
        names = list(properties)
        keys = [n for n in names if n in value] + [k for k in value if k not in names]
        return {k: ordered(value[k], properties.get(k)) for k in keys}
    if isinstance(value, list):
        return [ordered(v, schema.get("items")) for v in value]
    return value
