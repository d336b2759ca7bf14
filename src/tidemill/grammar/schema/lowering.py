"""The second pass: rewrites keywords that need resolved references to those of the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from typing import Any

from tidemill.grammar.schema import keywords
from tidemill.grammar.schema.alternatives import anyof_of_oneof
from tidemill.grammar.schema.paths import Path, rejected
from tidemill.grammar.schema.references import IN_PLACE, References, places
from tidemill.grammar.schema.sets import property_names, unique_items


@dataclass(slots=True)
class Lowered:
    """The result of the pass.

    Attributes:
        changed: a schema was rewritten.
        never: an object requires a property that it forbids.
        named: an object has named properties and allows others.
    """

    changed: bool = False
    never: bool = False
    named: bool = False


def lower(root: dict[str, Any], references: References, param: str) -> Lowered:
    """Rewrite, in place, each schema's oneOf, uniqueItems and propertyNames.

    Raises:
        TidemillError: kind BAD_REQUEST naming the keyword that cannot be enforced.
    """
    found = Lowered()
    multiples: set[float] = set()
    for node, path in reversed(list(places(root))):  # inner ones first
        if "propertyNames" in node:
            property_names(node, references, param, path)
            found.changed = True
        if "uniqueItems" in node:
            unique_items(node, references, param, path)
            found.changed = True
        if "oneOf" in node:
            anyof_of_oneof(node, references, root, param, path)
            found.changed = True
        node.pop("discriminator", None)
        multiples |= {node["multipleOf"]} if "multipleOf" in node else set()
        if "properties" in node or "required" in node or "patternProperties" in node:
            _check_counts(node, param, path)
            if node.get("additionalProperties") is not False:
                found.named = True
            elif "required" in node and "patternProperties" not in node:
                found.never |= not node.get("properties", {}).keys() >= set(node["required"])
        elif "minProperties" in node:
            _check_counts(node, param, path)
    if len(multiples) > 1:
        for node, path in places(root):
            _check_multiples(node, references, param, path)
    return found


def _check_counts(node: Mapping[str, Any], param: str, path: Path) -> None:
    """Reject an object with more properties than the parser supports or can count."""
    properties, required = node.get("properties", {}), set(node.get("required", ()))
    optional = len(properties.keys() - required)
    for count, most, what in (
        (len(properties), keywords.MAX_PROPERTIES, "properties"),
        (optional, keywords.MAX_OPTIONAL, "properties that are not required"),
    ):
        if count > most:
            raise rejected(
                param,
                (*path, "properties"),
                f"an object has {count} {what}; at most {most} are supported",
            )
    # The parser does not remember names, so additional properties may have equal names.
    if node.get("minProperties", 0) > len(required) + 1 and (
        node.get("additionalProperties") is not False or "patternProperties" in node
    ):
        raise rejected(
            param,
            (*path, "minProperties"),
            "can be enforced up to one more than the required properties, unless all names are in "
            "properties and additionalProperties is false",
        )


def _check_multiples(node: dict[str, Any], references: References, param: str, path: Path) -> None:
    """Reject several multipleOf values for one number if their product exceeds 32 bits.

    The library computes the common multiple in 32 bits, of values at the same decimal scale, and
    ignores overflow.
    """
    if "multipleOf" not in node and not any(key in node for key in ("allOf", "$ref")):
        return
    found: set[float] = set()
    seen: set[int] = set()
    stack: list[Any] = [node]
    while stack:
        part = stack.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        references.spend(1)
        if "multipleOf" in part:
            found.add(part["multipleOf"])
        stack += [references.target(part, ())] if "$ref" in part else []
        stack += [inner for key in IN_PLACE for inner in part.get(key, ())]
    if len(found) > 1 and prod(_scaled(found)) >= 2**32:
        raise rejected(
            param,
            (*path, "multipleOf") if "multipleOf" in node else path,
            "numbers cannot be enforced to be multiples of "
            f"{' and '.join(map(str, sorted(found)))} at once",
        )


def _scaled(values: set[float]) -> list[int]:
    """The values as integers at the smallest decimal scale among them."""
    decimals = [Decimal(repr(value)).normalize() for value in values]
    scale = max(0, *(-int(d.as_tuple().exponent) for d in decimals))
    return [int(d.scaleb(scale)) for d in decimals]
