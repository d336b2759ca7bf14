"""A choice's output does not depend on how many tokens a step produces."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.marked_model import PARAMETERS, PARIS, TEMPLATE, TIME, TOOLS
from helpers.tiny_text import tokenizer_data
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.contract.sampling import SamplingParams
from tidemill.grammar.schema import prepared
from tidemill.text.answer import AnswerDelta, AnswerText
from tidemill.text.answering import ChatSide, OutputRequest, output_options_of, rules_of
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer(tokenizer_data())
CHAT = ChatSide.of(TOKENIZER, ChatTemplate(TEMPLATE), prepared)
FRAGMENTS = st.sampled_from([
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<", "\n", "\n\n", " ", "ä", "🌊", "stop",
    "sto", PARIS, TIME, PARIS[:-3], '{"name": "get_time"', "words of it", '"', "}",
])  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=8).map("".join)
BODIES: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"tools": TOOLS, "tool_choice": "required"},
    {"enable_thinking": True},
    {"guided_json": PARAMETERS},
    {"tools": TOOLS, "guided_json": PARAMETERS},
]


def said(body: dict[str, Any], tokens: bytes, cuts: list[int], stop: tuple[str, ...]) -> Any:
    """Everything that came of an output whose tokens came in these steps."""
    options = output_options_of(
        CHAT, OutputRequest.read(body), sampling=SamplingParams(), prompt_options=PromptOptions()
    )
    rules = rules_of(CHAT, options, "x")
    assert rules.parser is not None
    answer = AnswerText(TOKENIZER, rules.parser(), kept=rules.kept, stop=stop, track=True)
    found, stopped, at = AnswerDelta(), False, 0
    for cut in [*sorted(cuts), len(tokens)]:
        if cut > at and not stopped:
            part, stopped = answer.push(tuple(tokens[at:cut]))
            found, at = found + part, cut
    if not stopped:
        found += answer.finish()
    return found, answer.tokens, answer.reasoning_tokens, answer.calls, answer.stop_string


@pytest.mark.parametrize("body", BODIES)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, data=st.data())
def test_steps_of_any_size(body: dict[str, Any], text: str, data: st.DataObject) -> None:
    tokens = text.encode()
    cuts = data.draw(st.lists(st.integers(0, len(tokens)), max_size=12))
    stop = data.draw(st.sampled_from([(), ("stop",)]))
    one_by_one = said(body, tokens, list(range(len(tokens))), stop)
    assert said(body, tokens, cuts, stop) == one_by_one
    assert said(body, tokens, [], stop) == one_by_one


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_nothing_is_lost(text: str) -> None:
    """Without calls and thinking in the way, all that is written is said, but for white space."""
    found = said({"tools": TOOLS}, text.encode(), [], ())[0]
    kept = found.content + found.reasoning + "".join(c.arguments for c in found.calls)
    for word in ("words of it", "🌊", "ä"):
        assert kept.count(word) == text.count(word)


def test_a_document_is_all_there() -> None:
    for text in (' {"a": 1}\n', "<think>", "<tool_call> ", "\n"):
        assert said({"guided_json": {}}, text.encode(), [], ())[0].content == (
            text if text != "<think>" else ""
        )
