"""oneOf: enforced as anyOf if its alternatives are pairwise disjoint.

Disjointness is derived from types, constants, ranges, required properties and closed objects, with
references resolved. If it cannot be shown, the keyword is rejected, because a prefix of a document
does not determine that exactly one alternative matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from tidemill.grammar.schema.keywords import TYPES
from tidemill.grammar.schema.paths import Path, rejected
from tidemill.grammar.schema.references import References
from tidemill.grammar.schema.values import comparable, kinds_of

MAX_COMPARED = 64
"""Maximum alternatives compared pairwise; more must differ in one required constant."""

_DEEP = 4


def anyof_of_oneof(
    node: dict[str, Any], references: References, root: dict[str, Any], param: str, path: Path
) -> None:
    """Replace a schema's oneOf by anyOf, in place.

    Args:
        node: the schema with the keyword.
        references: of the root schema.
        root: the root schema; modified copies of alternatives' definitions are added to it.
        param, path: the location of `node`.

    Raises:
        TidemillError: kind BAD_REQUEST: two alternatives may match the same value.
    """
    parts = [part for part in node.pop("oneOf") if part is not False]
    tag = node.pop("discriminator", {}).get("propertyName")
    if isinstance(tag, str):
        parts = [_tagged(part, tag, references, root) for part in parts]
    around = {key: value for key, value in node.items() if key not in ("$defs", "definitions")}
    views = [_view([around, part], references) for part in parts]
    if not _have_distinct_constants(views):
        pair = _overlapping(views, references)
        if pair is not None:
            raise rejected(
                param,
                (*path, "oneOf"),
                f"alternatives {pair[0]} and {pair[1]} may both match, but exactly one must: "
                "give each a required property with a distinct constant, or use anyOf",
            )
    if "anyOf" in node:
        node["allOf"] = [*node.get("allOf", ()), {"anyOf": parts}]
    else:
        node["anyOf"] = parts


def _tagged(part: Any, tag: str, references: References, root: dict[str, Any]) -> Any:
    """An alternative in which the discriminator's property is required, as OpenAPI demands.

    Generators omit it from ``required`` if the property has a default.
    """
    found = references.followed(part)
    if not isinstance(found, dict) or tag not in found.get("properties", {}):
        return part
    if tag in found.get("required", ()):
        return part
    made = {**found, "required": [*found.get("required", ()), tag]}
    if found is part:
        return made
    # A new definition, because a reference with sibling keywords cannot be recursive.
    definitions = root.setdefault("$defs", {})
    name = f"{tag}~{len(definitions)}"
    definitions[name] = made
    return {"$ref": "#/$defs/" + name.replace("~", "~0").replace("/", "~1").replace("%", "%25")}


@dataclass(slots=True)
class _View:
    """The conjunction of several schemas for one value."""

    types: frozenset[str] = frozenset(TYPES)
    values: list[str] | None = None  # constants, as `comparable` texts
    required: set[str] = field(default_factory=set)
    properties: dict[str, list[Any]] = field(default_factory=dict)
    closed: list[set[str]] = field(default_factory=list)  # names, if no others are allowed
    low: float = float("-inf")
    high: float = float("inf")
    fewest: int = 0
    most: float = float("inf")
    choices: list[list[Any]] = field(default_factory=list)


def _view(schemas: list[Any], references: References) -> _View:
    view = _View()
    seen: set[int] = set()
    stack = list(schemas)
    while stack:
        node = stack.pop()
        if node is False:
            view.types = frozenset()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        references.spend(1 + len(node.get("properties", ())) + len(node.get("enum", ())))
        _add(view, node)
        if "$ref" in node:
            stack.append(references.target(node, ()))
        stack += node.get("allOf", ())
        view.choices += [node[key] for key in ("anyOf", "oneOf") if key in node]
    return view


def _add(view: _View, node: Mapping[str, Any]) -> None:
    own = node.get("type", TYPES)
    kinds = {own} if isinstance(own, str) else set(own)
    if "number" in kinds:
        kinds.add("integer")
    view.types &= kinds
    constants = [node["const"]] if "const" in node else node.get("enum")
    if constants is not None:
        texts = [comparable(value) for value in constants]
        view.values = texts if view.values is None else [t for t in view.values if t in texts]
        view.types &= {kind for value in constants for kind in kinds_of(value)}
    view.required |= set(node.get("required", ()))
    properties = node.get("properties", {})
    for name, part in properties.items():
        view.properties.setdefault(name, []).append(part)
    if node.get("additionalProperties") is False and "patternProperties" not in node:
        view.closed.append(set(properties))
    view.low = max(view.low, node.get("minimum", view.low))
    view.high = min(view.high, node.get("maximum", view.high))
    view.fewest = max(view.fewest, node.get("minItems", 0))
    view.most = min(view.most, node.get("maxItems", view.most))


def _have_distinct_constants(views: list[_View]) -> bool:
    """A required property has constants in every alternative, and no constant occurs twice.

    `_disjoint` would find this too; this check is linear in the number of alternatives.
    """
    if not views or any(view.types != {"object"} for view in views):
        return False
    for name in set.intersection(*(view.required for view in views)):
        found: list[str] = []
        for view in views:
            constants = [
                constant
                for part in view.properties.get(name, ())
                if (constant := _constants(part)) is not None
            ]
            if not constants:
                break
            found += constants[0]
        else:
            if len(set(found)) == len(found):
                return True
    return False


def _constants(part: Any) -> list[str] | None:
    if not isinstance(part, dict):
        return None
    if "const" in part:
        return [comparable(part["const"])]
    return [comparable(value) for value in part["enum"]] if "enum" in part else None


def _overlapping(views: list[_View], references: References) -> tuple[int, int] | None:
    """The first pair of alternatives that are not known to be disjoint."""
    if len(views) > MAX_COMPARED:
        return 0, 1
    for one, two in combinations(range(len(views)), 2):
        if not _disjoint(views[one], views[two], references, _DEEP):
            return one, two
    return None


def _disjoint(a: _View, b: _View, references: References, deep: int) -> bool:
    """No value matches both; False if unknown."""
    references.spend(1)
    both = a.types & b.types
    if not both:
        return True
    if a.values is not None and b.values is not None and not set(a.values) & set(b.values):
        return True
    if both <= {"integer", "number"} and (a.low > b.high or b.low > a.high):
        return True
    if both == {"array"} and (a.fewest > b.most or b.fewest > a.most):
        return True
    if both == {"object"} and _disjoint_objects(a, b, references, deep):
        return True
    return deep > 0 and (
        _each_disjoint(a, b, references, deep) or _each_disjoint(b, a, references, deep)
    )


def _each_disjoint(a: _View, b: _View, references: References, deep: int) -> bool:
    """Every alternative of one of `a`'s anyOf lists is disjoint from `b`."""
    return any(
        len(choices) <= MAX_COMPARED
        and all(_disjoint(_view([part], references), b, references, deep - 1) for part in choices)
        for choices in a.choices
    )


def _disjoint_objects(a: _View, b: _View, references: References, deep: int) -> bool:
    for name in a.required | b.required:
        if any(name not in names for names in (*a.closed, *b.closed)):
            return True
        one, two = a.properties.get(name), b.properties.get(name)
        if deep and one and two:
            views = _view(one, references), _view(two, references)
            if _disjoint(*views, references, deep - 1):
                return True
    return False
