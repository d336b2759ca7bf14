"""Long runs of characters at which a reader could start over: time is linear in the text.

With quadratic time these texts take minutes.
"""

from __future__ import annotations

import time

import pytest

from tidemill.text.constraints import constraint_of
from tidemill.text.parsers.engine import OutputParser
from tidemill.text.parsers.formats import FORMATS
from tidemill.text.parsers.json_scan import escaped
from tidemill.text.parsers.python_calls import python_calls

COUNT = 60_000
SECONDS = 20.0  # of processor time; it takes some hundredths
RUNS = ("\n", " ", "'\\", '"\\', "'", '"', '"""', "[", "(", "\\", "a", "a\n", "-", "{", "\t\n")


@pytest.mark.parametrize("run", RUNS, ids=repr)
def test_readers_of_text(run: str) -> None:
    begun = time.thread_time()
    text = run * (COUNT // len(run))
    escaped(text + "\x01")
    python_calls(f"[f(a={text})]")
    constraint = constraint_of({"guided_grammar": text + "?"})
    assert constraint is not None and constraint.grammar is not None
    assert constraint.grammar.kind == "lark"
    assert time.thread_time() - begun < SECONDS


@pytest.mark.parametrize("name", FORMATS)
def test_readers_of_outputs(name: str) -> None:
    form, begun = FORMATS[name], time.thread_time()
    for run in ("\n", " ", "'\\"):
        for mark in ("", *form.marks[:2]):
            parser = OutputParser(form, (), parse_tools=True, parse_reasoning=True)
            text = mark + run * (COUNT // 2 // len(run))
            for at in range(0, len(text), 3000):
                parser.push(text[at : at + 3000])
            parser.finish()
    assert time.thread_time() - begun < SECONDS


@pytest.mark.parametrize("text", ["f(a='x", "f(a='x\\'", 'f(a="""x")', "f(a='b', c=\"d)"])
def test_a_text_that_is_not_closed_is_no_value(text: str) -> None:
    assert isinstance(python_calls(text), str)


def test_gbnf_is_still_told_from_lark() -> None:
    for source in ('root ::= "a"', '\n\n  root\t::= "a"', "# a\n\nx-y ::= z"):
        constraint = constraint_of({"guided_grammar": source})
        assert constraint is not None and constraint.grammar is not None
        assert constraint.grammar.kind == "gbnf"
