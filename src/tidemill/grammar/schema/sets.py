"""Rewrites ``uniqueItems`` and ``propertyNames``, which the grammar library does not enforce.

A parser does not remember which items it has seen, so ``uniqueItems`` becomes one alternative per
sequence of distinct values: all orders if there are few values, only the values' own order if there
are more; beyond that it is rejected. ``propertyNames`` becomes ``properties`` or
``patternProperties`` where these can express it.
"""

from __future__ import annotations

from itertools import combinations, permutations
from math import comb, inf, perm
from typing import Any

from tidemill.grammar.schema.paths import Path, rejected
from tidemill.grammar.schema.references import References
from tidemill.grammar.schema.values import comparable, kinds_of

MAX_SEQUENCES = 350
"""Maximum number of sequences: enough for all orders of five values, or all subsets of eight."""


def unique_items(node: dict[str, Any], references: References, param: str, path: Path) -> None:
    """Replace a schema's ``uniqueItems: true`` by the sequences it allows, in place.

    Raises:
        TidemillError: kind BAD_REQUEST: the sequences are too many or unknown.
    """
    del node["uniqueItems"]
    least, most = node.get("minItems", 0), node.get("maxItems", inf)
    if most <= 1:
        return
    types = node.get("type")
    types = [types] if isinstance(types, str) else types
    if types is not None and "array" not in types:
        return
    values = None
    if types is not None and "prefixItems" not in node and "items" in node:
        values = _values(node["items"], references, 8)
    most = min(most, len(values or ()))
    sequences = None if values is None else _sequences(values, int(least), int(most))
    if values is None or sequences is None:
        raise rejected(
            param,
            (*path, "uniqueItems"),
            "can be enforced only if items is an enum of up to 8 values; leave it out and remove "
            "duplicates yourself",
        )
    others = [kind for kind in types or () if kind != "array"]
    if not sequences and not others:
        raise rejected(
            param, (*path, "minItems"), f"{least} unique items need more than {most} values"
        )
    for key in ("items", "minItems", "maxItems"):
        node.pop(key, None)
    parts: list[Any] = [
        {
            "type": "array",
            "prefixItems": [{"const": value} for value in sequence],
            "items": False,
            "minItems": len(sequence),
            "maxItems": len(sequence),
        }
        for sequence in sequences
    ]
    if others:
        parts.append({"type": others})
    node["allOf"] = [*node.get("allOf", ()), {"anyOf": parts}]


def _sequences(values: list[Any], least: int, most: int) -> list[tuple[Any, ...]] | None:
    lengths = range(least, most + 1)
    for count, order in ((perm, permutations), (comb, combinations)):
        if sum(count(len(values), length) for length in lengths) <= MAX_SEQUENCES:
            return [found for length in lengths for found in order(values, length)]
    return None


def _values(schema: Any, references: References, deep: int) -> list[Any] | None:
    """All distinct values that match a schema; None if they are many or unknown."""
    schema = references.followed(schema)
    if schema is False:
        return []
    if not isinstance(schema, dict) or not deep:
        return None
    keys = schema.keys() - {"type", "title"}
    found: list[Any] | None = None
    if keys == {"const"}:
        found = [schema["const"]]
    elif keys == {"enum"}:
        found = schema["enum"]
    elif keys == {"anyOf"} or (keys == {"allOf"} and len(schema["allOf"]) == 1):
        found = []
        for part in schema[keys.pop()]:
            values = _values(part, references, deep - 1)
            if values is None:
                return None
            found += values
    elif not keys and isinstance(schema.get("type"), str):
        return _FEW.get(schema["type"])
    if found is None:
        return None
    own = schema.get("type")
    kinds = None if own is None else {own} if isinstance(own, str) else set(own)
    kept = [v for v in found if kinds is None or kinds & set(kinds_of(v))]
    return list({comparable(value): value for value in kept}.values())


_FEW: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}


def property_names(node: dict[str, Any], references: References, param: str, path: Path) -> None:
    """Replace a schema's ``propertyNames`` by equivalent keywords about its properties, in place.

    Raises:
        TidemillError: kind BAD_REQUEST: they cannot express it.
    """
    names = references.followed(node.pop("propertyNames"))
    if isinstance(names, dict):
        own = names.get("type", "string")
        if own == "string" or (isinstance(own, list) and "string" in own):
            names = {key: value for key, value in names.items() if key != "type"}
    if names is True or names == {}:
        return
    rest = node.get("additionalProperties", True)
    given = node.get("properties", {})
    known = _values(names, references, 8)
    if known is not None:
        known = [name for name in known if isinstance(name, str)]
    if known is not None and "patternProperties" not in node:
        node["properties"] = {
            **{name: part if name in known else False for name, part in given.items()},
            **({name: rest for name in known if name not in given} if rest is not False else {}),
        }
        node["additionalProperties"] = False
        return
    alone = not given and "patternProperties" not in node
    if alone and isinstance(names, dict) and names.keys() == {"pattern"}:
        if rest is not False:
            node["patternProperties"] = {names["pattern"]: rest}
        node["additionalProperties"] = False
        return
    raise rejected(
        param,
        (*path, "propertyNames"),
        "the keyword cannot be enforced here; use patternProperties with additionalProperties "
        "false",
    )
