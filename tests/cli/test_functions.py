"""Python functions as tools: what their signatures and docstrings become."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import jsonschema
import pytest

from tidemill.base.errors import TidemillError
from tidemill.cli.functions import Functions, describe, read_docstring, schema_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    loud: bool


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (str, ["a"], [1]),
        (int, [1], ["a", 1.5]),
        (float, [1.5], ["a"]),
        (bool, [True], [1]),
        (list[int], [[1, 2]], [["a"]]),
        (Sequence[str], [["a"]], [[1]]),
        (dict[str, int], [{"a": 1}], [{"a": "b"}]),
        (tuple[int, str], [[1, "a"]], [[1], [1, 2]]),
        (int | None, [1, None], ["a"]),
        (Literal["a", 2], ["a", 2], ["b"]),
        (Colour, ["red"], ["green"]),
        (Point, [{"x": 1.0}, {"x": 1.0, "y": 2}], [{"y": 1}, {"x": 1, "z": 2}]),
        (Options, [{}, {"loud": True}], [{"loud": 1}]),
        (Any, [1, "a", None], []),
    ],
)
def test_annotations(kind: Any, good: list[Any], bad: list[Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema_of(kind))
    assert all(map(validator.is_valid, good)) and not any(map(validator.is_valid, bad))


GOOGLE = """Find a thing.

More about it.

Args:
    name: What it is called,
        in full.
    size (int): How large.

Returns:
    size: not a parameter.
"""
NUMPY = """Find a thing.

Parameters
----------
name : str
    What it is called,
    in full.
size : int
    How large.

Returns
-------
int
"""
SPHINX = """Find a thing.

:param name: What it is called,
    in full.
:param int size: How large.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX])
def test_docstrings(text: str) -> None:
    summary, meanings = read_docstring(text)
    assert summary == "Find a thing."
    assert meanings == {"name": "What it is called, in full.", "size": "How large."}


def test_a_function_and_its_calls() -> None:
    def paint(where: Point, colour: Colour = Colour.RED) -> dict[str, Any]:
        """Paint a point."""
        return {"x": where.x, "colour": colour}

    tool = describe("paint", paint)["function"]
    assert tool["description"] == "Paint a point." and tool["parameters"]["required"] == ["where"]
    functions = Functions({"paint": paint})
    assert json.loads(functions.call("paint", '{"where": {"x": 2}, "colour": "blue"}')) == {
        "x": 2,
        "colour": "blue",
    }
    for name, arguments in (("paint", "{}"), ("paint", "{"), ("other", "{}")):
        assert "error" in json.loads(functions.call(name, arguments))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "no such file"),
        ("x = 1", "no public functions"),
        ("1 / 0", "ZeroDivisionError"),
        ("def f(*args): ...", "'args' takes any arguments"),
        ("def f(a, /): ...", "'a' is positional only"),
        ("def f(a: bytes): ...", "'a' has a type that JSON cannot carry"),
        ("def f(a: 'Nothing'): ...", "f(): NameError"),
    ],
)
def test_what_cannot_be_a_tool_is_named(tmp_path: Path, source: str | None, says: str) -> None:
    file = tmp_path / "mine.py"
    if source is not None:
        file.write_text(source)
    with pytest.raises(TidemillError) as caught:
        Functions.of_file(str(file))
    assert says in caught.value.message and caught.value.param == "tools"
