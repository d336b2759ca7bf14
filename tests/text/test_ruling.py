"""Grammars of calls: each is compiled, and its language is what the format's parser reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from llguidance import LLMatcher, LLTokenizer

from tidemill.base.errors import TidemillError
from tidemill.contract.program import Grammar
from tidemill.grammar.schema import prepared
from tidemill.text.constraints import Region
from tidemill.text.parsers.engine import OutputParser
from tidemill.text.parsers.events import CallArguments, CallStart, Content
from tidemill.text.parsers.format import Format
from tidemill.text.parsers.formats import FORMATS
from tidemill.text.ruling import Spelling, calls_grammar, regions_grammar
from tidemill.text.tools import tool_use

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "a\"'<\n"]}, "n": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMES = ("get_weather", "set-timer.v2")
USE = tool_use([{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in NAMES])
TOOLS = [replace(tool, schema=prepared(tool.schema, "x")) for tool in USE.tools]
PLAIN = Spelling({})
ENFORCED = [f for f in FORMATS.values() if f.name in (
    "hermes", "llama3_json", "mistral", "mistral_plain", "deepseek_v3", "deepseek_v31",
    "minimax_m1", "granite", "cohere", "phi4_mini", "functools", "functionary",
)]  # fmt: skip
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


def written(form: Format, calls: list[tuple[str, dict[str, object]]]) -> str:
    """Calls as the grammar writes them, found by the grammar's own literals."""
    from tidemill.text.parsers.format import JsonCall, NamedJson

    bodies = []
    for name, arguments in calls:
        text = json.dumps(arguments)
        syntax = form.syntax
        if isinstance(syntax, JsonCall):
            head = f'{{"{syntax.name[0]}": {json.dumps(name)}, "{syntax.arguments[0]}": '
            bodies.append(f"{head}{text}}}")
        else:
            assert isinstance(syntax, NamedJson)
            bodies.append(f"{syntax.before}{name}{syntax.after}{text}{syntax.tail}")
    begin, end = form.begin + form.padding, form.padding + form.end
    if isinstance(form.syntax, JsonCall) and form.syntax.listed:
        inside = f"{begin}[{', '.join(bodies)}]{end}"
    else:
        gap = form.between or ("\n" if form.begin and not form.section[0] else "")
        inside = gap.join(f"{begin}{body}{end}" for body in bodies)
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
    several = calls_grammar(form, TOOLS, PLAIN, by="x", required=True, parallel=True)
    single = calls_grammar(form, TOOLS, PLAIN, by="x", required=True, parallel=False)
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
    free = calls_grammar(form, TOOLS, PLAIN, by="x", required=False, parallel=True)
    one, both = written(form, CALLS[:1]), written(form, CALLS)
    for text in ("", "Hello <tool_cal", f"So:\n{one}", f"{both} and so on", one):
        assert accepts(bytes_vocabulary, free, text), text
    for text in ("<tool_call>", "a <tool_call>\n{}", f"{one}<tool_call>"):
        assert not accepts(bytes_vocabulary, free, text), text
    single = calls_grammar(form, TOOLS, PLAIN, by="x", required=False, parallel=False)
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
        made = calls_grammar(
            form, TOOLS, PLAIN, by="x", required=False, parallel=True, document=document
        )
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


@pytest.mark.parametrize("name", ["pythonic", "qwen3_coder", "glm45", "gemma"])
def test_what_cannot_be_enforced_is_said(name: str) -> None:
    with pytest.raises(TidemillError) as caught:
        calls_grammar(FORMATS[name], TOOLS, PLAIN, by="tool_choice", required=True, parallel=True)
    assert caught.value.param == "tool_choice" and name in caught.value.message


def test_special_tokens_are_tokens() -> None:
    assert Spelling({"<call>": 7}).write('a"<call>b') == '"a\\"" <[7]> "b"'
    made = calls_grammar(
        FORMATS["hermes"], TOOLS, Spelling({"<tool_call>": 7}),
        by="x", required=False, parallel=True,
    )  # fmt: skip
    assert "region: TEXT <[7]>" in made
