"""Grammars of calls: each compiles, and its language is what the format's parser accepts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from llguidance import LLMatcher, LLTokenizer

from tidemill.base.errors import TidemillError
from tidemill.contract.program import Grammar
from tidemill.grammar.schema import prepared
from tidemill.text.call_grammar import Spelling, calls_grammar, regions_grammar
from tidemill.text.constraints import Region
from tidemill.text.parsers.engine import OutputParser
from tidemill.text.parsers.events import CallArguments, CallStart, Content
from tidemill.text.parsers.format import (
    Format,
    JsonCall,
    Kind,
    NamedJson,
    PythonCalls,
    TaggedCall,
)
from tidemill.text.parsers.formats import FORMATS
from tidemill.text.tools import Tool, tool_use

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "a\"'<\n"]}, "n": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMES = ("get_weather", "set_timer.v2")
USE = tool_use([{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in NAMES])
TOOLS = [replace(tool, schema=prepared(tool.schema, "x")) for tool in USE.tools]
PLAIN = Spelling({})
ENFORCED = [f for f in FORMATS.values() if f.syntax is not None]
CALLS = [(NAMES[0], {"city": "Rome", "n": -3}), (NAMES[1], {"city": "a\"'<\n"})]


@pytest.fixture(scope="module")
def bytes_vocabulary() -> LLTokenizer:
    return LLTokenizer("byte")


def accepts(vocabulary: LLTokenizer, grammar: str, text: str) -> bool:
    """The text, and nothing less, is a whole member of the language."""
    matcher = LLMatcher(vocabulary, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = vocabulary.tokenize_str(text)
    return matcher.validate_tokens(tokens) == len(tokens) and (
        matcher.consume_tokens(tokens) and matcher.is_accepting()
    )


def body(form: Format, name: str, arguments: dict[str, object], index: int) -> str:
    """One call as the model was trained to write it."""
    text = json.dumps(arguments, ensure_ascii=False)
    syntax = form.syntax
    if isinstance(syntax, JsonCall):
        head = f'{{"{syntax.name[0]}": {json.dumps(name)}, "{syntax.arguments[0]}": '
        return f"{{{json.dumps(name)}: {text}}}" if syntax.keyed else f"{head}{text}}}"
    if isinstance(syntax, NamedJson):
        text = unquoted(arguments, syntax.quote) if syntax.quote else text
        number = f"{syntax.id_marks[0]}{index}" if syntax.numbered else ""
        head = f"{'abcd12345' if syntax.id_first else ''}{syntax.before}{name}{number}"
        return f"{head}{syntax.infix}{syntax.after}{text}{syntax.tail}"
    if isinstance(syntax, PythonCalls):
        return f"{name}({', '.join(f'{k}={python(v)}' for k, v in arguments.items())})"
    assert isinstance(syntax, TaggedCall)
    gaps, pad = syntax.gaps, "\n" if syntax.padded else ""
    parts = [f"{name}{syntax.recipient}" if syntax.recipient else ""]
    parts.append(f"{syntax.name[0]}{name}{syntax.name[1]}")
    parts.append(f"{index}{syntax.index}" if syntax.index else "")
    parts.append(gaps.name)
    for key, value in arguments.items():
        head = f"{syntax.key[0]}{key}{syntax.key[1]}"
        if syntax.kind is not None:
            head += f"{syntax.kind.before}{kind_of(value, syntax.kind)}{syntax.kind.after}"
        if syntax.value[0]:
            head += gaps.key + syntax.value[0]
        value = elements(value, syntax) if syntax.echoed else bare(value)
        close = syntax.value[1] + (key + syntax.echoed if syntax.echoed else "")
        parts.append(f"{head}{pad}{value}{pad}{close}{gaps.value}")
    return "".join([*parts, gaps.end, syntax.end])


def bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def elements(value: object, syntax: TaggedCall) -> str:
    """A value whose members are elements."""
    if isinstance(value, list):
        return "".join(element("item", item, syntax) for item in value)
    if isinstance(value, dict):
        return "".join(element(name, member, syntax) for name, member in value.items())
    return bare(value)


def element(name: str, value: object, syntax: TaggedCall) -> str:
    begin = syntax.key[0] + name + syntax.key[1]
    return begin + elements(value, syntax) + syntax.value[1] + name + syntax.echoed


def kind_of(value: object, kind: Kind) -> str:
    """What the attribute says of a value."""
    if isinstance(value, str):
        return kind.text
    for types, name in (
        (bool, "boolean"), (int | float, "number"), (dict, "object"), (list, "array"),
    ):  # fmt: skip
        if isinstance(value, types):
            return kind.other or name
    return kind.other or "null"


def unquoted(value: object, quote: str) -> str:
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{unquoted(v, quote)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(unquoted(v, quote) for v in value) + "]"
    return json.dumps(value)


def written(form: Format, calls: list[tuple[str, dict[str, object]]]) -> str:
    """Calls as the model was trained to write them."""
    bodies = [body(form, name, arguments, i) for i, (name, arguments) in enumerate(calls)]
    begin, end = form.begin + form.padding, form.padding + form.end
    listed = getattr(form.syntax, "listed", False) or getattr(form.syntax, "bracketed", False)
    if listed:
        inside = f"{begin}[{', '.join(bodies)}]{end}"
    else:
        gap = form.between or form.spread or ("\n" if form.begin and not form.section[0] else "")
        inside = gap.join(f"{begin}{body}{end}" for body in bodies)
    if form.section[0]:
        inside = form.spread + inside + form.spread
    return form.section[0] + inside + form.section[1]


def read(form: Format, text: str) -> list[tuple[str, dict[str, object]]]:
    """What the parser makes of a text."""
    parser = OutputParser(form, USE.tools)
    events = [*parser.push(text), *parser.finish()]
    assert not any(isinstance(e, Content) for e in events), events
    names = [e.name for e in events if isinstance(e, CallStart)]
    return [
        (name, json.loads("".join(
            e.text for e in events if isinstance(e, CallArguments) and e.index == i)))
        for i, name in enumerate(names)
    ]  # fmt: skip


@pytest.mark.parametrize("form", ENFORCED, ids=lambda f: f.name)
def test_what_the_grammar_writes_the_parser_reads(
    bytes_vocabulary: LLTokenizer, form: Format
) -> None:
    several = calls_grammar(form, TOOLS, PLAIN, required=True, parallel=True)
    single = calls_grammar(form, TOOLS, PLAIN, required=True, parallel=False)
    both, one = written(form, CALLS), written(form, CALLS[:1])
    assert accepts(bytes_vocabulary, several, both) and accepts(bytes_vocabulary, several, one)
    assert accepts(bytes_vocabulary, single, one) and not accepts(bytes_vocabulary, single, both)
    assert read(form, both) == CALLS and read(form, one) == CALLS[:1]
    wrong = one.replace("Rome", "Bonn")
    assert not accepts(bytes_vocabulary, several, wrong)
    assert not accepts(bytes_vocabulary, several, one.replace(NAMES[0], "launch"))
    assert not accepts(bytes_vocabulary, several, "x" + one)


def test_calls_among_text(bytes_vocabulary: LLTokenizer) -> None:
    form = FORMATS["hermes"]
    free = calls_grammar(form, TOOLS, PLAIN, required=False, parallel=True)
    one, both = written(form, CALLS[:1]), written(form, CALLS)
    for text in ("", "Hello <tool_cal", f"So:\n{one}", f"{both} and so on", one):
        assert accepts(bytes_vocabulary, free, text), text
    for text in ("<tool_call>", "a <tool_call>\n{}", f"{one}<tool_call>"):
        assert not accepts(bytes_vocabulary, free, text), text
    single = calls_grammar(form, TOOLS, PLAIN, required=False, parallel=False)
    assert accepts(bytes_vocabulary, single, f"So:\n{one}")
    assert accepts(bytes_vocabulary, single, "No.")
    assert not accepts(bytes_vocabulary, single, both)


def test_documents_beside_calls(bytes_vocabulary: LLTokenizer) -> None:
    form = FORMATS["hermes"]
    one = written(form, CALLS[:1])
    for document, good, bad in (
        (Grammar("json_schema", '{"const": 1}'), "1", "2"),
        (Grammar("json_object"), '{"a": 1}', "[]"),
        (Grammar("choice", '["yes", "n\\"o"]'), 'n"o', "maybe"),
        (Grammar("regex", "a/b\\/c|\n"), "a/b/c", "a"),
    ):
        made = calls_grammar(form, TOOLS, PLAIN, required=False, parallel=True, document=document)
        assert accepts(bytes_vocabulary, made, good) and accepts(bytes_vocabulary, made, one)
        assert not accepts(bytes_vocabulary, made, bad)
        assert not accepts(bytes_vocabulary, made, good + one)


def test_regions(bytes_vocabulary: LLTokenizer) -> None:
    regions = [
        Region("<f=a>", '{"const": 1}', "</f>", "x"),
        Region("<f=b>", '{"const": 2}', "</f>", "x"),
        Region("[[", "true", "]]", "x"),
    ]
    made = regions_grammar(regions, ["<f=", "[["], lambda schema, param: prepared(schema, param))
    for text in ("", "words", "so <f=a>1</f> and <f=b>2</f>.", "[[{}]]", "<f=a>1</f>[[0]]"):
        assert accepts(bytes_vocabulary, made, text), text
    for text in ("<f=", "so <f=a>2</f>", "<f=c>1</f>", "[[x]]"):
        assert not accepts(bytes_vocabulary, made, text), text


RICH = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 2, "maxLength": 8},
        "when": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "unit": {"$ref": "#/$defs/Unit"},
        "on": {"type": "boolean"},
        "box": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        "any": {},
    },
    "required": ["text", "box"],
    "$defs": {"Unit": {"type": "string", "enum": ["C", "F", "12"]}},
}
# Values that look like something else, marks within them.
RICH_CALLS: list[dict[str, object]] = [
    {"text": "12", "box": {"a": ""}},
    {"text": " \n ", "when": "12", "unit": "12", "on": True, "box": {"a": 'é😀"x'}, "any": "y"},
    {"text": "true", "when": None, "on": False, "box": {"a": "1"}},
    {"text": '"q"', "when": "</x", "box": {"a": "</parameter></arg_value>```)]"}},
]


def tool_of(schema: dict[str, object], name: str = "f") -> list[Tool]:
    use = tool_use([{"type": "function", "function": {"name": name, "parameters": schema}}])
    return [replace(tool, schema=prepared(tool.schema, "x")) for tool in use.tools]


BARE = [
    f for f in ENFORCED
    if isinstance(f.syntax, TaggedCall | PythonCalls) or getattr(f.syntax, "quote", "")
]  # fmt: skip


@pytest.mark.parametrize("form", BARE, ids=lambda f: f.name)
@pytest.mark.parametrize("arguments", RICH_CALLS)
def test_bare_values_come_back(
    bytes_vocabulary: LLTokenizer, form: Format, arguments: dict[str, object]
) -> None:
    made = calls_grammar(form, tool_of(RICH), PLAIN, required=True, parallel=True)
    text = written(form, [("f", arguments)])
    assert accepts(bytes_vocabulary, made, text), text
    parser = OutputParser(form, tool_of(RICH))
    events = [*parser.push(text), *parser.finish()]
    found = "".join(e.text for e in events if isinstance(e, CallArguments))
    assert json.loads(found) == arguments, events


def python(value: object) -> str:
    return repr(value) if isinstance(value, bool | None) else json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("form", BARE, ids=lambda f: f.name)
def test_what_a_bare_value_may_not_be(bytes_vocabulary: LLTokenizer, form: Format) -> None:
    made = calls_grammar(form, tool_of(RICH), PLAIN, required=True, parallel=True)
    good = {"text": "abc", "unit": "C", "on": True, "box": {"a": "b"}}

    def text(**changed: object) -> str:
        return written(form, [("f", {k: v for k, v in (good | changed).items() if v != "-"})])

    assert accepts(bytes_vocabulary, made, text())
    for wrong in (text(text="a"), text(text="x" * 9), text(unit="K"), text(on=3), text(box=1),
                  text(text="-"), text(extra="x")):  # fmt: skip
        assert not accepts(bytes_vocabulary, made, wrong), wrong


def test_nested_elements(bytes_vocabulary: LLTokenizer) -> None:
    point = {"type": "object", "properties": {"x": {"type": "integer"}, "name": {"type": "string"}}}
    schema: dict[str, object] = {
        "properties": {
            "path": {"type": "array", "items": {**point, "required": ["x"]}, "maxItems": 2},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        },
    }
    form = FORMATS["minimax_m3"]
    made = calls_grammar(form, tool_of(schema), PLAIN, required=True, parallel=True)
    for arguments in (
        {"path": [{"x": 1, "name": "p<q"}, {"x": -2}], "tags": ["b", "a"]},
        {"path": [], "tags": []},
    ):
        text = written(form, [("f", arguments)])
        assert accepts(bytes_vocabulary, made, text), text
        parser = OutputParser(form, tool_of(schema))
        events = [*parser.push(text), *parser.finish()]
        found = "".join(e.text for e in events if isinstance(e, CallArguments))
        assert json.loads(found) == arguments, events
    for wrong in (
        {"path": [{}]},
        {"path": [{"x": 1}] * 3},
        {"path": [{"x": "a"}]},
        {"tags": ["c"]},
    ):
        assert not accepts(bytes_vocabulary, made, written(form, [("f", {"path": wrong})]))


@pytest.mark.parametrize("name", ["minimax_m3", "gemma4"])
def test_a_schema_that_refers_to_itself(bytes_vocabulary: LLTokenizer, name: str) -> None:
    node = {"type": "object", "properties": {"n": {"type": "integer"}}}
    properties = {**node["properties"], **{k: {"$ref": "#/$defs/Node"} for k in "abcdefgh"}}  # type: ignore[dict-item]
    schema: dict[str, object] = {
        "properties": {"root": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": {**node, "properties": properties}},
    }
    form = FORMATS[name]
    made = calls_grammar(form, tool_of(schema), PLAIN, required=True, parallel=True)
    text = written(form, [("f", {"root": {"n": 1, "a": {"h": {"n": 2}, "n": 3}}})])
    if form.name == "minimax_m3":
        text = written(form, [("f", {"root": {"n": 1, "a": {"n": 3, "h": {"n": 2}}}})])
    assert accepts(bytes_vocabulary, made, text), text


@pytest.mark.parametrize(
    ("name", "schema", "where"),
    [
        ("qwen3_coder", {"properties": {"a": {"type": "string", "pattern": "x"}}},
         "properties.a.pattern"),
        ("glm45", {"properties": {"a": {"anyOf": [{"type": "string", "format": "date"}]}}},
         "properties.a.anyOf"),
        ("minimax_m2", {"properties": {}, "minProperties": 1}, "minProperties"),
        ("qwen3_coder", {"properties": {"a>": {"type": "string"}}}, "properties.a>"),
        ("minimax_m2", {"properties": {"a": {"enum": ["</parameter>"]}}}, "properties.a"),
        ("pythonic", {"properties": {"a b": {"type": "string"}}}, "properties.a b"),
        ("gemma4", {"properties": {"a:b": {"type": "string"}}}, "properties.a:b"),
        ("gemma", {"properties": {}, "patternProperties": {"x": {}}}, "patternProperties"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_named(name: str, schema: dict[str, object], where: str) -> None:
    with pytest.raises(TidemillError) as caught:
        calls_grammar(FORMATS[name], tool_of(schema), PLAIN, required=True, parallel=True)
    assert caught.value.param == f"tools[0].function.parameters.{where}"


@pytest.mark.parametrize("name", ["pythonic", "gemma", "lfm2"])
def test_names_that_python_does_not_take(bytes_vocabulary: LLTokenizer, name: str) -> None:
    schema: dict[str, object] = {"properties": {"from": {"type": "string"}, "x-y": {}}}
    tools = tool_of(schema, "get-it.v2")
    made = calls_grammar(FORMATS[name], tools, PLAIN, required=True, parallel=True)
    text = written(FORMATS[name], [("get-it.v2", {"from": "a", "x-y": 1})])
    assert accepts(bytes_vocabulary, made, text)
    parser = OutputParser(FORMATS[name], tools)
    events = [*parser.push(text), *parser.finish()]
    assert [e.name for e in events if isinstance(e, CallStart)] == ["get-it.v2"]


@pytest.mark.parametrize("name", ["llama3_json", "pythonic"])
def test_a_call_is_what_an_answer_begins_with(bytes_vocabulary: LLTokenizer, name: str) -> None:
    form = FORMATS[name]
    made = calls_grammar(form, TOOLS, PLAIN, required=False, parallel=True)
    for text in ("", " \n", "Hello {}", "1. [x]", written(form, CALLS), written(form, CALLS[:1])):
        assert accepts(bytes_vocabulary, made, text), text
    for text in ("{}", " [1]", "\x1c{", written(form, CALLS).replace("Rome", "Bonn")):
        assert not accepts(bytes_vocabulary, made, text), text


@pytest.mark.parametrize("answer", [" to=user<|message|>", ""])
def test_a_call_is_what_a_message_is_addressed_to(
    bytes_vocabulary: LLTokenizer, answer: str
) -> None:
    form = replace(FORMATS["glimmer"], answer=answer)
    made = calls_grammar(form, TOOLS, PLAIN, required=False, parallel=True)
    for text in ("", "Send it to=me.", "{}"):
        assert accepts(bytes_vocabulary, made, answer + text), text
    assert accepts(bytes_vocabulary, made, written(form, CALLS))
    for text in (" to=nobody", "x" + written(form, CALLS[:1]), written(form, CALLS[:1]) + "x"):
        assert not accepts(bytes_vocabulary, made, text) or (text[0] == "x" and not answer), text


def test_words_between_special_marks() -> None:
    form = FORMATS["harmony"]
    spelled = {"<|channel|>": 1, "<|message|>": 2, "<|call|>": 3, "<|start|>": 4, "<|return|>": 5}
    vocabulary = LLTokenizer("byte")
    made = calls_grammar(form, TOOLS, Spelling(spelled), required=False, parallel=False)
    matcher = LLMatcher(vocabulary, made, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    assert 'WORDS | <[4]> "assistant"' in made and '<[1]> "final" <[2]>' in made


def test_special_tokens_are_tokens() -> None:
    assert Spelling({"<call>": 7}).write('a"<call>b') == '"a\\"" <[7]> "b"'
    made = calls_grammar(
        FORMATS["hermes"], TOOLS, Spelling({"<tool_call>": 7}),
        required=False, parallel=True,
    )  # fmt: skip
    assert "region: TEXT <[7]>" in made
