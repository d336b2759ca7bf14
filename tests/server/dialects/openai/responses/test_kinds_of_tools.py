"""Custom tools, namespaces, searches for tools, and tools that only OpenAI's servers run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.marked_model import PARAMETERS, Model
from helpers.responses_api import both, create, refused, stream

PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files."}
DIGITS = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
LINES = {
    "type": "grammar",
    "syntax": "lark",
    "definition": 'start: line+\nline: "+" /(.*)/ LF\n%import common.LF',
}
FILES = {
    "type": "namespace",
    "name": "files",
    "description": "Files of the project.",
    "tools": [
        {"type": "function", "name": "read", "parameters": PARAMETERS, "strict": False},
        {"type": "custom", "name": "write"},
    ],
}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Find tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}


def _written(name: str, **arguments: Any) -> str:
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _ruled(model: Model) -> str:
    """The grammar of the latest request."""
    (phase,) = [p for p in model.engine.requests[-1].program.phases if hasattr(p, "source")]
    source: str = phase.source
    return source


def test_a_custom_tool_takes_text(model: Model) -> None:
    text = 'say "ü\\n" 😀\n\tend'
    model.text = _written("apply_patch", input=text)
    response = both(model.http, input="Edit", tools=[PATCH])
    (call,) = response["output"]
    assert call["type"] == "custom_tool_call" and call["input"] == text
    assert call["name"] == "apply_patch" and call["call_id"].startswith("call_")
    assert response["tools"] == [{**PATCH, "format": {"type": "text"}}]
    assert model.engine.requests[-1].program.free
    # Whatever else the model makes of its only argument.
    model.text = _written("apply_patch", patch="x")
    assert both(model.http, input="Edit", tools=[PATCH])["output"][0]["input"] == "x"
    model.text = _written("apply_patch", a=1, b=2)
    assert both(model.http, input="Edit", tools=[PATCH])["output"][0]["input"] == '{"a": 1, "b": 2}'


def test_its_format_is_enforced(model: Model) -> None:
    model.text = _written("apply_patch", input="42")
    for form, part in ((DIGITS, "^(?:[0-9]+)$"), (LINES, "(?:(?:(?:\\+")):
        tool = {**PATCH, "format": form}
        response = both(model.http, input="Edit", tools=[tool])
        assert response["output"][0]["input"] == "42" and response["tools"] == [tool]
        assert json.dumps(part)[1:-1] in _ruled(model)
        shown = json.dumps(f"this {form['syntax']} grammar:\n{form['definition']}")[1:-1]
        assert shown in model.prompt()  # masks alone make a model say what it does not mean
        chosen = {"type": "custom", "name": "apply_patch"}
        both(model.http, input="Edit", tools=[tool], tool_choice=chosen)


def test_its_input_is_streamed_as_it_is_enforced(model: Model) -> None:
    text = '+a "b"\n+c\\d\n+é😀\n'
    model.text = _written("apply_patch", input=text)
    events = stream(model.http, input="Edit", tools=[{**PATCH, "format": LINES}])
    deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == text and len(deltas) > 5


def test_formats_that_cannot_be_enforced_are_refused(model: Model) -> None:
    recursive = {**LINES, "definition": 'start: "(" start? ")"'}
    error = refused(model.http, input="x", tools=[{**PATCH, "format": recursive}])
    assert error["param"] == "tools[0].format.definition" and "refers to itself" in error["message"]
    for form in ({"type": "poem"}, {"type": "grammar", "syntax": "gbnf", "definition": "x"}):
        error = refused(model.http, input="x", tools=[{**PATCH, "format": form}])
        assert error["param"].startswith("tools[0].format"), error


def test_a_namespace_is_shown_flat_and_answered_apart(model: Model) -> None:
    model.text = _written("files__read", city="x") + "\n" + _written("files__write", input="y")
    response = both(model.http, input="Read", tools=[FILES])
    read, write = response["output"]
    assert (read["namespace"], read["name"], read["type"]) == ("files", "read", "function_call")
    assert (write["namespace"], write["name"], write["input"]) == ("files", "write", "y")
    assert "Files of the project." in model.prompt() and '"files__read"' in model.prompt()
    assert response["tools"] == [FILES]
    results = [
        {"type": "function_call_output", "call_id": read["call_id"], "output": "1"},
        {"type": "custom_tool_call_output", "call_id": write["call_id"], "output": "2"},
    ]
    model.text = "Done."
    create(model.http, input=results, tools=[FILES], previous_response_id=response["id"])
    assert '"name": "files__read"' in model.prompt()
    both(
        model.http,
        input="x",
        tools=[FILES],
        tool_choice={"type": "function", "namespace": "files", "name": "read"},
    )
    twice = [FILES, {"type": "function", "name": "files__read"}]
    assert refused(model.http, input="x", tools=twice)["param"] == "tools[1].name"
    inner = {**FILES, "tools": [{"type": "function", "name": "a b"}]}
    assert refused(model.http, input="x", tools=[inner])["param"] == "tools[0].tools[0].name"


def test_a_client_searches_for_tools(model: Model) -> None:
    model.text = _written("tool_search", query="weather")
    response = both(model.http, input="Weather?", tools=[SEARCH])
    (call,) = response["output"]
    assert call["type"] == "tool_search_call" and call["execution"] == "client"
    assert call["arguments"] == {"query": "weather"}
    found = {
        "type": "tool_search_output",
        "call_id": call["call_id"],
        "execution": "client",
        "tools": [FILES],
    }
    model.text = _written("files__read", city="x")
    body = {"input": [found], "tools": [SEARCH], "previous_response_id": response["id"]}
    (read,) = both(model.http, **body)["output"]
    assert read["namespace"] == "files" and read["name"] == "read"
    assert "found: files__read, files__write" in model.prompt()


def test_deferred_tools_are_shown_at_once(model: Model) -> None:
    tool = {"type": "function", "name": "late", "parameters": PARAMETERS, "defer_loading": True}
    model.text = _written("late", city="x")
    response = both(model.http, input="x", tools=[tool, {"type": "tool_search"}])
    assert response["output"][0]["name"] == "late"
    item = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    user = {"role": "user", "content": "x"}
    assert both(model.http, input=[item, user])["output"][0]["name"] == "late"


@pytest.mark.parametrize("kind", ["web_search", "file_search", "image_generation", "mcp", "shell"])
def test_tools_of_openais_servers_are_left_out_and_named(model: Model, kind: str) -> None:
    model.text = "Hello."
    response = both(model.http, input="x", tools=[{"type": kind, "any": 1}, PATCH])
    (notice,) = response["notices"]
    assert notice["type"] == "tools_not_served" and notice["tools"] == [kind]
    assert [tool["type"] for tool in response["tools"]] == ["custom"]
    error = refused(model.http, input="x", tools=[PATCH], tool_choice={"type": kind})
    assert error["param"] == "tool_choice.type" and kind in error["message"]


@pytest.mark.parametrize("kind", [["x"], {}, 3, None, "teleport"])
def test_kinds_that_are_none_are_refused(model: Model, kind: Any) -> None:
    listed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind, "name": "x"}]}
    for choice in (listed, {"type": kind, "name": "x"}):
        error = refused(model.http, input="x", tools=[PATCH], tool_choice=choice)
        assert error["param"].startswith("tool_choice"), error
    assert refused(model.http, input="x", tools=[{"type": kind}])["param"] == "tools[0].type"
    inner = {"type": kind, "name": "x"} if kind is not None else {"type": "web_search"}
    error = refused(model.http, input="x", tools=[{**FILES, "tools": [inner]}])
    assert error["param"] == "tools[0].tools[0].type"


def test_members_of_tools_are_checked(model: Model) -> None:
    for change, param in (
        ({"async": True}, "tools[0].async"),
        ({"allowed_callers": ["programmatic"]}, "tools[0].allowed_callers[0]"),
        ({"color": "red"}, "tools[0].color"),
    ):
        assert refused(model.http, input="x", tools=[{**PATCH, **change}])["param"] == param
    neutral = {**PATCH, "async": False, "allowed_callers": ["direct"]}
    model.text = "Hello."
    both(model.http, input="x", tools=[neutral])
