"""Finds schemas without finite documents, by a least fixed point over schemas and references.

It considers types, required properties, minimum numbers of items, constants and references. A
schema is assumed to have a finite document unless these rule it out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from tidemill.grammar.schema.keywords import TYPES
from tidemill.grammar.schema.paths import Path, rejected
from tidemill.grammar.schema.references import IN_PLACE, References, children, places


def prune_infinite(root: dict[str, Any], references: References, param: str) -> None:
    """Replace, in place, each schema that has no finite document by ``false``.

    Raises:
        TidemillError: kind BAD_REQUEST naming the path: the root schema has no finite document.
    """
    finite = _Finite(references)
    finite.solve(root)
    if not finite.has(root):
        raise rejected(
            param,
            finite.cause(root),
            "no finite document matches: a required value is impossible, or requires another value "
            "of the same schema without a base case",
        )
    finite.prune(root)


class _Finite:
    def __init__(self, references: References) -> None:
        self._references = references
        self._known: set[int] = set()  # ids of schemas that have a finite document
        self._types: dict[int, tuple[str, ...]] = {}

    def has(self, schema: Any) -> bool:
        return schema is not False and (schema is True or id(schema) in self._known)

    def solve(self, root: dict[str, Any]) -> None:
        pending = deque(reversed(list(self._nodes(root))))  # inner ones first
        waiting: dict[int, list[dict[str, Any]]] = {}
        while pending:
            node = pending.popleft()
            if id(node) in self._known:
                continue
            blocking = self._blocking(node)
            if blocking is None:
                self._known.add(id(node))
                pending += waiting.pop(id(node), [])
            else:
                for _, inner in blocking:
                    waiting.setdefault(id(inner), []).append(node)

    def _nodes(self, root: dict[str, Any]) -> Iterator[dict[str, Any]]:
        stack: list[tuple[dict[str, Any], tuple[str, ...]]] = [(root, TYPES)]
        while stack:
            node, outer = stack.pop()
            own = node.get("type", TYPES)
            types = (own,) if isinstance(own, str) else tuple(own)
            if types == TYPES:
                types = outer
            self._types[id(node)] = types
            yield node
            for step, inner in children(node):
                if isinstance(inner, dict):
                    stack.append((inner, types if step[0] in IN_PLACE else TYPES))

    def _blocking(self, node: dict[str, Any]) -> list[tuple[Path, Any]] | None:
        """The subschemas of which one must first have a finite document; None if none is needed."""
        self._references.spend(1 + len(node.get("required", ())) + len(node.get("allOf", ())))
        if "$ref" in node:
            target = self._references.target(node, ())
            if not self.has(target):
                return [(("$ref",), target)]
        for index, part in enumerate(node.get("allOf", ())):
            if not self.has(part):
                return [(("allOf", index), part)]
        for key in ("anyOf", "oneOf"):
            parts = node.get(key)
            if parts is not None and not any(map(self.has, parts)):
                return [((key, i), part) for i, part in enumerate(parts)]
        if "const" in node or "enum" in node:
            return None
        found: list[tuple[Path, Any]] = []
        for kind in self._types[id(node)]:
            if kind == "object":
                missing = self._missing(node)
            elif kind == "array":
                missing = self._missing_item(node)
            else:
                missing = None
            if missing is None:
                return None
            found.append(missing)
        return found

    def _missing(self, node: dict[str, Any]) -> tuple[Path, Any] | None:
        properties = node.get("properties", {})
        for name in node.get("required", ()):
            if name in properties:
                if not self.has(properties[name]):
                    return ("properties", name), properties[name]
            elif "patternProperties" not in node and "propertyNames" not in node:
                rest = node.get("additionalProperties", True)
                if not self.has(rest):
                    return ("required",), rest
        return None

    def _missing_item(self, node: dict[str, Any]) -> tuple[Path, Any] | None:
        least = node.get("minItems", 0)
        items, first = node.get("items", True), node.get("prefixItems", [])
        where = "items"
        if isinstance(items, list):
            items, first, where = node.get("additionalItems", True), items, "additionalItems"
        for index, item in enumerate(first):
            if index < least and not self.has(item):
                return ("items" if where == "additionalItems" else "prefixItems", index), item
        if least > len(first) and not self.has(items):
            return (where,), items
        return None

    def cause(self, root: dict[str, Any]) -> Path:
        """The path of the subschema because of which the root schema has no finite document."""
        where = {id(node): path for node, path in places(root)}
        node: Any = root
        path: Path = ()
        seen: set[int] = set()
        while isinstance(node, dict) and id(node) not in seen:
            seen.add(id(node))
            blocking = self._blocking(node)
            if not blocking:
                break
            step, inner = blocking[0]
            path, node = (*where.get(id(node), path), *step), inner
        return path

    def prune(self, root: dict[str, Any]) -> None:
        stack = [root]
        while stack:
            node = stack.pop()
            for step, inner in list(children(node)):
                if not isinstance(inner, dict):
                    continue
                if id(inner) in self._known:
                    stack.append(inner)
                elif step[0] not in ("$defs", "definitions"):
                    holder: Any = node if len(step) == 1 else node[str(step[0])]
                    holder[step[-1]] = False
