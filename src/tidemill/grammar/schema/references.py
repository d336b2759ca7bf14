"""Resolves references within a schema, and rejects cycles that describe no value.

A schema that refers to itself for the same value (``{"$ref": "#"}``) describes nothing and is
rejected. A schema that requires another instance of itself in every document (a ``required``
property without a base case) has no finite document; `finite` handles it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from tidemill.grammar.schema.keywords import MAPS, ONE
from tidemill.grammar.schema.paths import Path, rejected

MAX_FOLLOWED = 500
"""Maximum nesting of schemas, references resolved: the grammar library recurses through them."""

MAX_STEPS = 300_000
"""Maximum steps of comparing schemas and resolving references: about 0.1 s."""

IN_PLACE = ("allOf", "anyOf", "oneOf")


def children(node: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The direct subschemas of a schema, definitions included, with their relative paths."""
    for key, value in node.items():
        if key in MAPS:
            for name, part in value.items():
                yield (key, name), part
        elif isinstance(value, list) and (key in IN_PLACE or key in ("prefixItems", "items")):
            for index, part in enumerate(value):
                yield (key, index), part
        elif key in ONE:
            yield (key,), value


def places(root: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Path]]:
    """A schema and all its subschemas with their paths, breadth first."""
    found: list[tuple[dict[str, Any], Path]] = [(root, ())]
    for node, path in found:
        yield node, path
        found += [(n, (*path, *step)) for step, n in children(node) if isinstance(n, dict)]


class References:
    """The references of one schema.

    Args:
        root: as copied by `audit.Audit`: each subschema is a separate object, and containers have
            valid types.
        param: the request's field that holds the schema.
    """

    def __init__(self, root: dict[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._found: dict[str, Any] = {}
        self._anchors: dict[str, Any] | None = None
        self._left = MAX_STEPS
        self.recursive = False
        """A schema contains itself; known after `check`."""

    def spend(self, steps: int) -> None:
        """Deduct steps from the budget.

        Raises:
            TidemillError: kind BAD_REQUEST; the budget is exhausted.
        """
        self._left -= steps
        if self._left < 0:
            raise rejected(
                self._param, (), "the schema is too complex: too many parts to compare; simplify it"
            )

    def target(self, node: Mapping[str, Any], path: Path) -> Any:
        """The target of a schema's reference.

        Raises:
            TidemillError: kind BAD_REQUEST; the target does not exist or is outside the schema.
        """
        ref = node["$ref"]
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise rejected(
                self._param,
                (*path, "$ref"),
                "only references within the schema (#...) are supported",
            )
        if ref not in self._found:
            self._found[ref] = self._resolve(ref[1:])
        if not isinstance(self._found[ref], dict | bool):
            raise rejected(self._param, (*path, "$ref"), f"there is no schema at {ref[:100]!r}")
        return self._found[ref]

    def followed(self, schema: Any) -> Any:
        """Resolve a schema that is only a reference, repeatedly."""
        while isinstance(schema, dict) and "$ref" in schema and len(schema) == 1:
            schema = self.target(schema, ())
        return schema

    def _resolve(self, pointer: str) -> Any:
        if pointer and not pointer.startswith("/"):
            if self._anchors is None:
                self._anchors = dict(_anchors(self._root))
            return self._anchors.get(pointer)
        node: Any = self._root
        for step in unquote(pointer).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                return None
        return node

    def check(self) -> None:
        """Raise unless every reference has a target and no schema refers to itself in place.

        Raises:
            TidemillError: kind BAD_REQUEST naming the reference.
        """
        nodes = list(places(self._root))
        for node, path in nodes:
            if "$ref" in node:
                self.target(node, path)
        done: set[int] = set()
        for node, _ in nodes:
            self._check_in_place(node, done)
        self._check_depth()

    def _check_in_place(self, begin: dict[str, Any], done: set[int]) -> None:
        """Traverse the schemas that apply to the same value; a cycle among them is an error."""
        if id(begin) in done:
            return
        above = {id(begin)}
        stack = [(begin, self._in_place(begin))]
        while stack:
            node, steps = stack[-1]
            found = next(steps, None)
            if found is None:
                stack.pop()
                above.discard(id(node))
                done.add(id(node))
                continue
            step, inner = found
            if not isinstance(inner, dict) or id(inner) in done:
                continue
            if id(inner) in above:
                place = next(path for known, path in places(self._root) if known is node)
                raise rejected(
                    self._param,
                    (*place, *step),
                    "the reference is circular: it leads back to itself and describes no value",
                )
            above.add(id(inner))
            stack.append((inner, self._in_place(inner)))

    def _in_place(self, node: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
        if "$ref" in node:
            yield ("$ref",), self.target(node, ())
        for key in IN_PLACE:
            for index, part in enumerate(node.get(key, ())):
                yield (key, index), part

    def _check_depth(self) -> None:
        """Limit the depth of a depth-first traversal that visits each schema once."""
        seen = {id(self._root)}
        above = {id(self._root)}
        stack = [(self._root, self._steps(self._root))]
        while stack:
            inner = next(stack[-1][1], None)
            if inner is None:
                above.discard(id(stack.pop()[0]))
            elif isinstance(inner, dict) and id(inner) in seen:
                self.recursive |= id(inner) in above
            elif isinstance(inner, dict):
                seen.add(id(inner))
                above.add(id(inner))
                stack.append((inner, self._steps(inner)))
                if len(stack) > MAX_FOLLOWED:
                    raise rejected(
                        self._param,
                        (),
                        f"more than {MAX_FOLLOWED} schemas are nested within each other, with "
                        "references resolved",
                    )

    def _steps(self, node: dict[str, Any]) -> Iterator[Any]:
        for step, inner in children(node):
            if step[0] not in ("$defs", "definitions"):
                yield inner
        if "$ref" in node:
            yield self.target(node, ())


def _anchors(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        if isinstance(node.get("$anchor"), str):
            yield node["$anchor"], node
        for _, inner in children(node):
            yield from _anchors(inner)
