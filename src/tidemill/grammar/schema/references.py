"""References within a schema: where they lead, and whether documents can come to an end there.

A schema that leads to itself without a value in between (``{"$ref": "#"}``) says nothing and is
rejected. One that every document of which would have to hold another of itself (a ``required``
property without a base case) has no finite document: it is rejected where the whole schema is such
a one, and is the same as ``false`` anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from tidemill.grammar.schema.keywords import MAPS, ONE
from tidemill.grammar.schema.paths import Path, rejected

MAX_FOLLOWED = 500
"""Schemas one within the other, references followed: the grammar library descends them on its
stack."""

MAX_STEPS = 300_000
"""Steps of comparing schemas and following references in one schema: some 0.1 s."""

IN_PLACE = ("allOf", "anyOf", "oneOf")


def children(node: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The schemas directly within a schema, definitions included, with their place."""
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
    """All schemas within a schema, itself first, outer ones before inner ones, with their place."""
    found: list[tuple[dict[str, Any], Path]] = [(root, ())]
    for node, path in found:
        yield node, path
        found += [(n, (*path, *step)) for step, n in children(node) if isinstance(n, dict)]


class References:
    """The references of one schema.

    Args:
        root: as `audit.Audit` copied it: each schema an object of its own, maps and lists where
            they belong.
        param: the request's field it came from.
    """

    def __init__(self, root: dict[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._found: dict[str, Any] = {}
        self._anchors: dict[str, Any] | None = None
        self._left = MAX_STEPS
        self.recursive = False
        """Some schema leads to itself; known once checked."""

    def spend(self, steps: int) -> None:
        """Count steps of following what references share.

        Raises:
            TidemillError: kind BAD_REQUEST; the schema takes too many.
        """
        self._left -= steps
        if self._left < 0:
            raise rejected(
                self._param, (), "too many parts are to be compared with one another; simplify it"
            )

    def target(self, node: Mapping[str, Any], path: Path) -> Any:
        """Where a schema's reference leads.

        Raises:
            TidemillError: kind BAD_REQUEST; nothing is there, or it is not in the schema.
        """
        ref = node["$ref"]
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise rejected(
                self._param,
                (*path, "$ref"),
                "only references into the schema itself (#...) are followed",
            )
        if ref not in self._found:
            self._found[ref] = self._resolve(ref[1:])
        if not isinstance(self._found[ref], dict | bool):
            raise rejected(self._param, (*path, "$ref"), f"no schema is at {ref[:100]!r}")
        return self._found[ref]

    def followed(self, schema: Any) -> Any:
        """A schema, or where its references lead while nothing stands beside them."""
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
        """Every reference leads somewhere, none back to itself without a value in between.

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
        """Follow what holds of the same value; a schema that comes back is on its own path."""
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
                    "the reference leads back to itself and describes nothing",
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
        """Bound how deep a reader comes that enters each schema once."""
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
                        f"more than {MAX_FOLLOWED} schemas are one within the other, references "
                        "followed",
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
