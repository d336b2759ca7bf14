"""Every format: the parsed events, which do not depend on the chunking (promise 8)."""

# ruff: noqa: RUF001  (DeepSeek spells its marks with a full-width bar)

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.text.parsers.engine import OutputParser
from tidemill.text.parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Event,
    Malformed,
    Reasoning,
)
from tidemill.text.parsers.formats import FORMATS, THINK, THINKING, with_thinking


@dataclass(frozen=True)
class Offered:
    name: str
    schema: str


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
BOXES = {"properties": {"box": {"type": "object"}, "list": {"type": "array"}}}
TOOLS = (
    Offered("get_weather", json.dumps(SCHEMA)),
    Offered("f", "{}"),
    Offered("g", json.dumps(BOXES)),
)
# A mark, quotes and brackets inside a string end nothing.
TRICKY = {"city": 'K</tool_call>öln "x" }{', "days": 3}
A = json.dumps(TRICKY, ensure_ascii=False)
PLAIN = {"city": "Köln", "days": 3}

# format, text, reasoning, content, calls
Case = tuple[str, str, str, str, list[tuple[str, dict[str, object]]]]
CASES: list[Case] = [
    (
        "hermes",
        f"<think>\nhm {{x}}\n</think>\n\nSure.\n<tool_call>\n"
        f'{{"name": "get_weather", "arguments": {A}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        "hm {x}",
        "Sure.",
        [("get_weather", TRICKY), ("f", {})],
    ),
    ("hermes", "a <tool_ca b", "", "a <tool_ca b", []),
    ("hermes", "plain  text \n", "", "plain  text \n", []),
    (
        "llama3_json",
        f'{{"name": "get_weather", "parameters": {A}}}; {{"name": "f", "parameters": {{}}}}',
        "",
        "",
        [("get_weather", TRICKY), ("f", {})],
    ),
    ("llama3_json", '{"a": 1} hello', "", '{"a": 1} hello', []),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', "", "", [("f", {})]),
    ("llama3_json", 'hello {"name": "f"}', "", 'hello {"name": "f"}', []),
    (
        "mistral",
        f'text[TOOL_CALLS][{{"name": "get_weather", "arguments": {A}}}, '
        '{"name": "f", "arguments": {}}]',
        "",
        "text",
        [("get_weather", TRICKY), ("f", {})],
    ),
    (
        "mistral_args",
        f"[TOOL_CALLS]get_weather[ARGS]{A}[TOOL_CALLS]f[CALL_ID]abc[ARGS]{{}}",
        "",
        "",
        [("get_weather", TRICKY), ("f", {})],
    ),
    (
        "deepseek_v3",
        "hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{A}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        "hi",
        [("get_weather", TRICKY)],
    ),
    (
        "deepseek_v31",
        "<think>a</think>b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        f"{A}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "a",
        "b",
        [("get_weather", TRICKY)],
    ),
    (
        "qwen3_coder",
        "ok\n<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=f>\n</function>\n</tool_call>",
        "",
        "ok",
        [("get_weather", PLAIN), ("f", {})],
    ),
    (
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "",
        "",
        [("get_weather", PLAIN)],
    ),
    (
        "kimi_k2",
        "x<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{A}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        "x",
        [("get_weather", TRICKY)],
    ),
    (
        "minimax_m1",
        f'x\n<tool_calls>\n{{"name": "get_weather", "arguments": {A}}}\n'
        '{"name": "f", "arguments": {}}\n</tool_calls>',
        "",
        "x",
        [("get_weather", TRICKY), ("f", {})],
    ),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Köln</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
        "",
        "",
        [("get_weather", PLAIN)],
    ),
    (
        "granite",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {A}}}]',
        "",
        "",
        [("get_weather", TRICKY)],
    ),
    (
        "cohere",
        "<|START_THINKING|>plan<|END_THINKING|><|START_ACTION|>"
        f'[{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {A}}}]<|END_ACTION|>',
        "plan",
        "",
        [("get_weather", TRICKY)],
    ),
    ("cohere", "<|START_RESPONSE|>Hello<|END_RESPONSE|>", "", "Hello", []),
    ("functionary", f"<function=get_weather>{A}</function>", "", "", [("get_weather", TRICKY)]),
    (
        "harmony",
        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.get_weather <|constrain|>json<|message|>{A}<|call|>",
        "think",
        "",
        [("get_weather", TRICKY)],
    ),
    ("harmony", "<|channel|>final<|message|>Hello<|return|>", "", "Hello", []),
    (
        "pythonic",
        '[get_weather(city="K]öln", days=3), f()]',
        "",
        "",
        [("get_weather", {"city": "K]öln", "days": 3}), ("f", {})],
    ),
    ("pythonic", "[1, 2] is a list", "", "[1, 2] is a list", []),
    (
        "functools",
        f'functools[{{"name": "get_weather", "arguments": {A}}}]',
        "",
        "",
        [("get_weather", TRICKY)],
    ),
    (
        "gemma",
        'Sure:\n```tool_code\nget_weather(city="Köln", days=3)\n```',
        "",
        "Sure:",
        [("get_weather", PLAIN)],
    ),
    # An end mark in quotes ends nothing, and JSON's constants are read where Python's belong.
    (
        "gemma",
        "```tool_code\nf(a='```', b=[true, null], c=\"\\ud83d\\ude00\")\n```",
        "",
        "",
        [("f", {"a": "```", "b": [True, None], "c": "😀"})],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=g>\n<parameter=box>\n"
        '{"a": "</parameter>", "b": ["</parameter>\\""]}\n</parameter>\n'
        "<parameter=list>\n[not json</parameter>\n<parameter=n>\nNaN\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        "",
        [("g", {"box": {"a": "</parameter>", "b": ['</parameter>"']}, "list": "[not json",
                "n": "NaN"})],
    ),
    # Marks that models leave out, and values in another's dialect.
    ("glm45", "<tool_call>f</tool_call>", "", "", [("f", {})]),
    ("glm45", "<tool_call>\nf\n</tool_call>", "", "", [("f", {})]),
    (
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Köln</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
        "",
        "",
        [("get_weather", PLAIN)],
    ),
    ("qwen3_coder", "<tool_call><function=g><parameter=box>{'a': [None, True]}</parameter>"
     "</function></tool_call>", "", "", [("g", {"box": {"a": [None, True]}})]),
    ("pythonic", '[f(from="a", in=1, x-y=2)]', "", "", [("f", {"from": "a", "in": 1, "x-y": 2})]),
    (
        "pythonic",
        "[f(a=\"x\ny)\", b=\"\"\"q\"]\nr\"\"\", c=\"\", d='\\'')]",
        "",
        "",
        [("f", {"a": "x\ny)", "b": 'q"]\nr', "c": "", "d": "'"})],
    ),
    ("gemma", '```tool_code\nf(in="a\nb```")\n```', "", "", [("f", {"in": "a\nb```"})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", "",
     [("f", {"a": 1})]),
    ("mistral_args", '[TOOL_CALLS]f{"a": 1}', "", "", [("f", {"a": 1})]),
    ("minicpm5", '<function name="f"><param name="a"><![CDATA[x</param>\n]]></param></function>',
     "", "", [("f", {"a": "x</param>\n"})]),
    ("gemma4", '<|tool_call>call:f{a:<|"|>x}<|"|>,b:[1,{c:None}],d:{}}<tool_call|>', "", "",
     [("f", {"a": "x}", "b": [1, {"c": None}], "d": {}})]),
    (
        "minimax_m3",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="g">]<]minimax[>[<box>'
        "]<]minimax[>[<box>1]<]minimax[>[</box>]<]minimax[>[</box>]<]minimax[>[<list>"
        "]<]minimax[>[</list>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
        "",
        "",
        [("g", {"box": {"box": 1}, "list": []})],
    ),
]  # fmt: skip
# What no grammar writes: it is read where the model writes freely.
FREE: list[Case] = [
    (
        "qwen3_coder",
        "ok\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "",
        "ok",
        [("get_weather", PLAIN)],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny\t"}}</tool_call>', "", "",
     [("f", {"a": "x\ny\t"})]),
    ("harmony", '<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.f'
     '<|channel|>commentary json<|message|>{"a": 1}<|call|>', "a", "", [("f", {"a": 1})]),
]  # fmt: skip
IDS = [f"{case[0]}-{i}" for i, case in enumerate(CASES)]


@dataclass
class Found:
    reasoning: str = ""
    content: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    ended: int = 0
    wrong: list[str] = field(default_factory=list)

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Reasoning):
                self.reasoning += event.text
            elif isinstance(event, Content):
                self.content += event.text
            elif isinstance(event, CallStart):
                self.calls[event.index] = [event.name, ""]
            elif isinstance(event, CallArguments):
                self.calls[event.index][1] += event.text
            elif isinstance(event, CallEnd):
                self.ended += 1
            elif isinstance(event, Malformed):
                self.wrong.append(event.reason)


def parse(name: str, chunks: Sequence[str], *, stream: bool = False) -> Found:
    think = THINKING["cohere"] if name == "cohere" else THINK
    form = with_thinking(FORMATS[name], think)
    parser, found = OutputParser(form, TOOLS, stream_arguments=stream), Found()
    for chunk in chunks:
        found.take(parser.push(chunk))
    found.take(parser.finish())
    return found


def cut(text: str, places: Iterable[int]) -> list[str]:
    marks = [0, *sorted(places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(marks)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_is_found(
    case: Case,
) -> None:
    name, text, reasoning, content, calls = case
    for stream in (False, True):
        found = parse(name, [text], stream=stream)
        assert (found.reasoning, found.content) == (reasoning, content)
        assert [(n, json.loads(a)) for n, a in found.calls.values()] == calls
        assert found.ended == len(calls) and not found.wrong


@pytest.mark.parametrize("case", FREE, ids=lambda case: case[0])
def test_what_no_grammar_writes(case: Case) -> None:
    name, text, reasoning, content, calls = case
    whole = parse(name, [text])
    assert (whole.reasoning, whole.content, whole.wrong) == (reasoning, content, [])
    assert [(n, json.loads(a)) for n, a in whole.calls.values()] == calls
    for at in range(len(text)):
        assert parse(name, [text[:at], text[at:]]) == whole


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_however_it_is_cut(case: Case, stream: bool) -> None:
    name, text = case[:2]
    whole, rng = parse(name, [text], stream=stream), random.Random(name)
    assert parse(name, list(text), stream=stream) == whole
    for _ in range(40):
        places = [rng.randrange(len(text) + 1) for _ in range(rng.randrange(1, 12))]
        assert parse(name, cut(text, places), stream=stream) == whole


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('<tool_call>\n{"name": "nope", "arguments": {}}\n</tool_call> rest', "unknown tool"),
        ('<tool_call>\n{"name": "f", "argu', "ended inside a call"),
        ('<tool_call>{"name": "f" @}</tool_call>y', "not valid JSON"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "not a JSON object"),
        ("<tool_call>f()</tool_call>", "expected a JSON object"),
    ],
)
def test_nothing_is_lost(text: str, says: str) -> None:
    found = parse("hermes", list(text))
    assert found.content == text and not found.calls
    assert len(found.wrong) == 1 and says in found.wrong[0]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("pythonic", "[f(1)]", "arguments must be given by name"),
        ("pythonic", "[f(a=1", "ended inside a call"),
        ("pythonic", "[f(a=x)]", "cannot be parsed"),
        ("llama3_json", '{"name": "f", "parameters": {"a":', "ended inside a call"),
        ("minimax_m1", "<tool_calls>\n[1]", "expected a JSON object"),
        ("qwen3_coder", "<function=f", "ended inside a call"),
    ],
)
def test_calls_that_cannot_be_read_are_told(name: str, text: str, says: str) -> None:
    found = parse(name, list(text))
    assert not found.calls and text.endswith(found.content) and found.content
    assert len(found.wrong) == 1 and says in found.wrong[0]


@pytest.mark.parametrize("text", ["[1, 2]", "[]", '{"nam": "f', "[other(1)]"])
@pytest.mark.parametrize("name", ["pythonic", "llama3_json"])
def test_what_was_never_a_call_is_no_error(name: str, text: str) -> None:
    found = parse(name, list(text))
    assert found.content == text and not found.wrong


SOUP = st.lists(
    st.sampled_from(
        [m for f in FORMATS.values() for m in f.marks]
        + ['{"name": "f", "arguments": {', "}", "]", '"', "\\", "\n", " ", "text", "[", "f(", ")"]
    ),
    max_size=14,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), SOUP, st.data())
def test_no_text_breaks_a_parser(name: str, text: str, data: st.DataObject) -> None:
    whole = parse(name, [text])
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert parse(name, cut(text, places)) == whole


def test_a_mark_is_not_taken_for_a_longer_one_that_is_still_coming() -> None:
    thinking = parse("glimmer", list(" to=self<|message|>Hm.<|eom|>"))
    assert thinking.reasoning == "Hm." and not thinking.wrong
    assert parse("glimmer", list(" to=self")).content == "to=self"


def test_time_is_linear() -> None:
    seconds = []
    for size in (40_000, 160_000):
        text = '<tool_call>{"name": "f", "arguments": {"a": "' + "x<tool_call" * (size // 11)
        begun = time.process_time()
        parse("hermes", list(text))
        seconds.append(time.process_time() - begun)
    assert seconds[1] < 8 * seconds[0] + 0.2, seconds
