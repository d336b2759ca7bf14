"""Tools and tool_choice: which tools may be called, and the exact member that an error names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.text.tools import ANY_OBJECT, NO_TOOLS, tool_use

PARAMETERS = {"type": "object", "properties": {"b": {"type": "string"}, "a": True}}


def tool(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


TWO = [tool("f", parameters=PARAMETERS, description="d"), tool("g")]


@pytest.mark.parametrize(
    ("choice", "parallel", "names", "required", "several", "enforced"),
    [
        (None, None, "fg", False, True, None),
        ("auto", True, "fg", False, True, None),
        ("auto", False, "fg", False, False, "parallel_tool_calls"),
        ("required", None, "fg", True, True, "tool_choice"),
        ("required", False, "fg", True, False, "tool_choice"),
        (named("g"), None, "g", True, False, "tool_choice"),
        (allowed("auto", "f"), None, "f", False, True, "tool_choice"),
        (allowed("auto", "f", "g"), None, "fg", False, True, None),
        (allowed("required", "f", "g"), None, "fg", True, True, "tool_choice"),
    ],
)
def test_what_may_be_called(
    choice: Any, parallel: Any, names: str, required: bool, several: bool, enforced: str | None
) -> None:
    use = tool_use(TWO, choice, parallel)
    assert "".join(t.name for t in use.tools) == names
    assert (use.required, use.parallel, use.enforced) == (required, several, enforced)
    assert [t["function"]["name"] for t in use.shown] == ["f", "g"], "all are shown"


def test_schemas_and_what_the_model_is_shown() -> None:
    use = tool_use([tool("f", parameters=PARAMETERS, strict=True, description=None), tool("g")])
    assert use.tools[0].schema == json.dumps(PARAMETERS), "keys in the client's order"
    assert use.tools[1].schema == ANY_OBJECT
    assert use.enforced == "tools[0].function.strict"
    assert use.shown[0] == {
        "type": "function",
        "function": {"name": "f", "parameters": PARAMETERS},
    }


def test_none_shows_nothing() -> None:
    for tools, choice in ((None, None), ([], None), (None, "none"), (TWO, "none")):
        use = tool_use(tools, choice)
        assert not use.shown and not use.tools and use.enforced is None


BAD: list[tuple[Any, Any, Any, str]] = [
    # tools, tool_choice, parallel_tool_calls, param
    ("x", None, None, "tools"),
    ({}, None, None, "tools"),
    ([1], None, None, "tools[0]"),
    ([{}], None, None, "tools[0].function"),
    ([{"type": "function"}], None, None, "tools[0].function"),
    ([{"type": "web_search"}], None, None, "tools[0].type"),
    ([tool(), {"type": "custom", "custom": {"name": "x"}}], None, None, "tools[1].type"),
    ([{**tool(), "cache": 1}], None, None, "tools[0].cache"),
    ([{"name": "f", "input_schema": {}}], None, None, "tools[0].function"),
    ([{"type": "function", "name": "f", "surprise": 1}], None, None, "tools[0].function.surprise"),
    ([tool()], {"type": "tool", "name": "f", "x": 1}, None, "tool_choice.function.x"),
    ([tool()], {"type": "tool", "name": "g"}, None, "tool_choice.function.name"),
    ([tool()], {"type": "all"}, None, "tool_choice.type"),
    ([tool(extra=1)], None, None, "tools[0].function.extra"),
    ([tool(strict="yes")], None, None, "tools[0].function.strict"),
    ([tool(description=5)], None, None, "tools[0].function.description"),
    ([tool(name="")], None, None, "tools[0].function.name"),
    ([tool(name="a b")], None, None, "tools[0].function.name"),
    ([tool(name="é")], None, None, "tools[0].function.name"),
    ([tool(name="x" * 129)], None, None, "tools[0].function.name"),
    ([tool(name=5)], None, None, "tools[0].function.name"),
    ([tool("f"), tool("f")], None, None, "tools[1].function.name"),
    ([tool(f"t{i}") for i in range(513)], None, None, "tools"),
    ([tool(parameters=[])], None, None, "tools[0].function.parameters"),
    ([tool(parameters={"type": "string"})], None, None, "tools[0].function.parameters.type"),
    ([tool(parameters={"properties": 5})], None, None, "tools[0].function.parameters.properties"),
    (
        [tool(parameters={"properties": {"x": "string"}})],
        *(None, None, "tools[0].function.parameters.properties.x"),
    ),
    ([tool(parameters={"required": "x"})], None, None, "tools[0].function.parameters.required"),
    ([tool(parameters={"required": [1]})], None, None, "tools[0].function.parameters.required"),
    ([], "required", None, "tool_choice"),
    (None, "required", None, "tool_choice"),
    ([], named("f"), None, "tool_choice"),
    (None, None, 1, "parallel_tool_calls"),
    (TWO, "all", None, "tool_choice"),
    (TWO, 1, None, "tool_choice"),
    (TWO, [], None, "tool_choice"),
    (TWO, {}, None, "tool_choice.type"),
    (TWO, {"type": "tool"}, None, "tool_choice.type"),
    (TWO, {"type": "function"}, None, "tool_choice.function"),
    (TWO, named("h"), None, "tool_choice.function.name"),
    (TWO, {**named("f"), **allowed("auto", "f"), "type": "function"}, None,
     "tool_choice.allowed_tools"),
    (TWO, {"type": "allowed_tools"}, None, "tool_choice.allowed_tools"),
    (TWO, allowed("auto"), None, "tool_choice.allowed_tools.tools"),
    (TWO, allowed("any", "f"), None, "tool_choice.allowed_tools.mode"),
    (TWO, allowed("auto", "f", "h"), None, "tool_choice.allowed_tools.tools[1].function.name"),
    (TWO, None, 1, "parallel_tool_calls"),
]  # fmt: skip


def test_any_is_another_word_for_required() -> None:
    assert tool_use([tool()], "any") == tool_use([tool()], "required")


def test_choices_as_other_apis_write_them() -> None:
    named = {"type": "function", "function": {"name": "f"}}
    for choice, meant in (
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "f"}, named),
        ({"type": "function", "name": "f"}, named),
    ):
        assert tool_use([tool()], choice) == tool_use([tool()], meant)


def test_without_tools_the_defaults_say_nothing() -> None:
    for tools in (None, []):
        for choice, parallel in (("auto", None), ("none", True), (None, False)):
            assert tool_use(tools, choice, parallel) == NO_TOOLS


@pytest.mark.parametrize(("tools", "choice", "parallel", "param"), BAD)
def test_bad_values_name_the_member(tools: Any, choice: Any, parallel: Any, param: str) -> None:
    with pytest.raises(TidemillError) as caught:
        tool_use(tools, choice, parallel)
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    assert caught.value.param == param
    assert param in caught.value.message and len(caught.value.message) < 500


def test_tools_as_other_apis_write_them() -> None:
    nested = tool_use([tool(parameters=PARAMETERS, description="d", strict=True)])
    flat = {"name": "f", "parameters": PARAMETERS, "description": "d", "strict": True}
    assert tool_use([{"type": "function", **flat}]) == nested
    assert tool_use([{"function": flat}]) == nested
    # As transformers' `get_json_schema` makes them: for the template.
    (shown,) = tool_use([tool(**{"return": {"type": "string"}})]).shown
    assert shown["function"] == {"name": "f", "return": {"type": "string"}}


def test_null_keywords_of_parameters_say_nothing() -> None:
    written = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "enum": ["x", None], "default": None, "pattern": None},
            "b": {"type": "array", "items": None},
            "const": {"const": None},
        },
        "required": None,
        "$defs": None,
    }
    (made,) = tool_use([tool(parameters=written)]).tools
    assert json.loads(made.schema) == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "enum": ["x", None], "default": None},
            "b": {"type": "array"},
            "const": {"const": None},
        },
    }
    (empty,) = tool_use([tool(parameters={"properties": None, "required": None})]).tools
    assert empty.schema == ANY_OBJECT
