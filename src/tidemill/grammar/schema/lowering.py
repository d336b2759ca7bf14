"""The second pass: what needs the whole schema is written in keywords of the grammar library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.grammar.schema import keywords
from tidemill.grammar.schema.alternatives import anyof_of_oneof
from tidemill.grammar.schema.paths import Path, rejected
from tidemill.grammar.schema.references import References, places
from tidemill.grammar.schema.sets import property_names, unique_items


def lower(root: dict[str, Any], references: References, param: str) -> bool:
    """Rewrite, in place, each schema's oneOf, uniqueItems and propertyNames.

    Returns:
        Something was rewritten.

    Raises:
        TidemillError: kind BAD_REQUEST naming the keyword that cannot be enforced.
    """
    changed = False
    for node, path in reversed(list(places(root))):  # inner ones first
        if "propertyNames" in node:
            property_names(node, references, param, path)
            changed = True
        if "uniqueItems" in node:
            unique_items(node, references, param, path)
            changed = True
        if "oneOf" in node:
            anyof_of_oneof(node, references, root, param, path)
            changed = True
        node.pop("discriminator", None)
        _check_counts(node, param, path)
    return changed


def _check_counts(node: Mapping[str, Any], param: str, path: Path) -> None:
    """Reject an object with more properties than the parser follows, or than it can count."""
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
                f"{count} {what} are more than {most} of one object",
            )
    # The parser does not remember names, so a further property may have the name of another.
    if node.get("minProperties", 0) > len(required) + 1 and (
        node.get("additionalProperties") is not False or "patternProperties" in node
    ):
        raise rejected(
            param,
            (*path, "minProperties"),
            "can be enforced for at most one property more than are required, unless all names "
            "are in properties and additionalProperties is false",
        )


def names_and_others(root: dict[str, Any]) -> bool:
    """Some object names properties and may have others."""
    return any(
        ("properties" in node or "required" in node or "patternProperties" in node)
        and node.get("additionalProperties") is not False
        for node, _ in places(root)
    )
