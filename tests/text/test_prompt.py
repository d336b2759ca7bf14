"""Prompts compared with transformers' apply_chat_template."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.tiny_text import tokenizer_json
from tokenizers import Tokenizer as Backend

from tidemill.base.errors import TidemillError
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.grammar.schema import prepared
from tidemill.text.answering import ChatSide
from tidemill.text.prompt import render_prompt
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer

TRIMMING = (
    "{{ bos_token }}{% if documents is defined and documents %}<docs>{% for d in documents %}"
    "[{{ loop.index }}] {{ d.title }}: {{ d['text'] | trim }} {{ d | tojson }}\n{% endfor %}</docs>"
    "{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WHOLE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{{ '' if documents is none else documents | length }}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The tide?"}]
DOCUMENTS = [
    {"title": "Tides", "text": "Two a day. "},
    {"title": "Mühlen", "text": 'They turn "wheels"', "page": 3},
]


def turn(content: str) -> list[dict[str, Any]]:
    return [*ASK, {"role": "assistant", "content": content}]


CASES: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    (ASK, {"add_generation_prompt": True}),
    (ASK, {"add_generation_prompt": False}),
    (ASK, {"add_generation_prompt": True, "documents": DOCUMENTS}),
    (ASK, {"add_generation_prompt": True, "documents": DOCUMENTS[:1]}),
    *(
        (turn(content), {"add_generation_prompt": False, "continue_final_message": True})
        for content in ("It rises", "It rises ", "  It rises", " Be brief. ", "a\n\nb\n")
    ),
    (turn("It"), {"continue_final_message": True, "documents": DOCUMENTS}),
    (turn("It rises."), {"add_generation_prompt": False}),
]


def ours(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    special = {"bos_token": "<|bos|>", "eos_token": "<|end|>"}
    data = TokenizerData(tokenizer_json=tokenizer_json(), chat_template=source, special=special)
    tokenizer = Tokenizer(data)
    template = ChatTemplate(source, tokenizer.special)
    side = ChatSide.of(tokenizer, template, prepared)
    return render_prompt(template, side, messages, PromptOptions(**options))


@pytest.mark.parametrize("source", [TRIMMING, WHOLE], ids=["trimming", "whole"])
@pytest.mark.parametrize(("messages", "options"), CASES)
def test_prompts_are_those_of_transformers(
    source: str, messages: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    from transformers import PreTrainedTokenizerFast

    if source == WHOLE and "documents" in options:
        options = {k: v for k, v in options.items() if k != "documents"}
    reference = PreTrainedTokenizerFast(
        tokenizer_object=Backend.from_str(tokenizer_json().decode()),
        bos_token="<|bos|>",
        eos_token="<|end|>",
        chat_template=source,
    )
    wanted = reference.apply_chat_template(messages, tokenize=False, **options)
    assert ours(source, messages, **options) == wanted


PARTS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|end|>{% endfor %}"
)


@pytest.mark.parametrize("source", [WHOLE, PARTS], ids=["texts", "parts"])
@pytest.mark.parametrize(
    ("content", "end"),
    [([], ""), ("", ""), ([{"type": "text", "text": "It "}], "It "), ("e", "e"), ("end", "end")],
)
def test_what_is_continued_ends_behind_its_content(source: str, content: Any, end: str) -> None:
    messages = [*ASK, {"role": "assistant", "content": content}]
    prompt = ours(source, messages, continue_final_message=True)
    assert prompt.endswith(f"The tide?<|end|><|assistant|>{end}")


def test_a_variable_that_is_null_is_absent() -> None:
    source = WHOLE + "{{ day is defined }}{{ day }}"
    assert ours(source, ASK, kwargs={"day": None}) == ours(source, ASK) != ""
    assert ours(source, ASK, kwargs={"day": "Monday"}).endswith("TrueMonday")


@pytest.mark.parametrize(
    ("source", "options", "param"),
    [
        (TRIMMING.replace("documents", "papers"), {"documents": DOCUMENTS}, "documents"),
        (WHOLE, {"documents": DOCUMENTS}, "documents[0]"),
        (TRIMMING, {"documents": "Tides"}, "documents"),
        (TRIMMING, {"documents": [DOCUMENTS[0], "Tides"]}, "documents[1]"),
        (TRIMMING, {"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_what_would_be_lost_is_refused(source: str, options: dict[str, Any], param: str) -> None:
    with pytest.raises(TidemillError) as caught:
        ours(source, ASK, **options)
    assert caught.value.param == param
