"""Tests that cannot fail, or that test what is private: what can be seen of it in the source.

`tests/private.txt` lists the files that still use private members, with how often. A number may
only become smaller: test what a member is for, or make it public.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent

# Names that begin with an underscore and are public; modules that are compiled.
PUBLIC = {"_replace", "_asdict", "_fields", "_exit", "_getframe", "_core", "_texts"}
VAGUE = {"Exception", "BaseException"}

Node = ast.Attribute | ast.ImportFrom | ast.Call | ast.Assert


@cache
def nodes() -> dict[str, list[Node]]:
    """The nodes of interest of each file of the tests."""
    found: dict[str, list[Node]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        tree = ast.walk(ast.parse(path.read_bytes()))
        found[str(path.relative_to(TESTS))] = [node for node in tree if isinstance(node, Node)]
    assert len(found) > 200
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def private_uses(file: str) -> Iterator[int]:
    """Lines that use a private member of something else, or a private name of the product."""
    for node in nodes()[file]:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_private(name):
                yield node.lineno
            case ast.ImportFrom(module=str(module)) if module.startswith("tidemill"):
                yield from (node.lineno for name in node.names if is_private(name.name))
            case ast.Call(func=ast.Attribute(attr="setattr"), args=args):
                texts = [arg.value for arg in args[:2] if isinstance(arg, ast.Constant)]
                if any(is_private(str(text).rpartition(".")[2]) for text in texts):
                    yield node.lineno


def test_private_members_are_used_ever_less() -> None:
    lines = (TESTS / "private.txt").read_text().splitlines()
    allowed = dict(line.split() for line in lines if not line.startswith("#"))
    found = {file: list(private_uses(file)) for file in nodes()}
    more = {
        file: f"{len(uses)} uses (lines {uses}), {allowed.get(file, 0)} allowed"
        for file, uses in found.items()
        if len(uses) > int(allowed.get(file, 0))
    }
    assert not more, f"test what the member is for, or make it public: {more}"


def test_an_exception_that_is_expected_is_named() -> None:
    vague = []
    for file, found in nodes().items():
        for node in found:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises":
                names = {getattr(part, "id", "") for part in ast.walk(node.args[0])}
                if names & VAGUE and not any(word.arg == "match" for word in node.keywords):
                    vague.append(f"{file}:{node.lineno}")
    assert not vague, vague


def test_no_assertion_is_always_true() -> None:
    """A tuple, a text or a number is: what was meant stands beside the comma or the `or`."""
    always = []
    for file, found in nodes().items():
        for node in found:
            if not isinstance(node, ast.Assert):
                continue
            parts: list[ast.expr] = [node.test]
            if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or):
                parts = node.test.values
            for part in parts:
                tuple_of_some = isinstance(part, ast.Tuple) and part.elts
                if tuple_of_some or (isinstance(part, ast.Constant) and part.value):
                    always.append(f"{file}:{node.lineno}")
    assert not always, always
