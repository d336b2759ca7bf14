"""Prompts of which only the end is used."""

from __future__ import annotations

import asyncio

import pytest
from helpers.live_server import fake_context, make_model
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import TidemillError
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.prepare import Prepared, prepare
from tidemill.generation.request import FITTING, GenerateRequest, Names, Parts, Source, TokenTexts


@pytest.mark.parametrize(
    ("source", "keep_last", "left"),
    [
        ("tide", None, (256, *b"tide")),
        ("tide", 3, (256, *b"de")),  # the start token stays
        ("tide", 1, tuple(b"e")),
        (Parts(["ti", (1, 2), "e"]), None, (256, *b"ti", 1, 2, *b"e")),
        (Parts([(1,), "de"]), 2, tuple(b"de")),
        ("tide", 9, (256, *b"tide")),
        ([1, 2, 3], 2, (2, 3)),
        ("a" * 300, 255, (256, *(97,) * 254)),  # it would not fit otherwise
    ],
)
def test_the_last_tokens_are_kept(
    source: Source, keep_last: int | None, left: tuple[int, ...]
) -> None:
    engine = ScriptedEngine()
    model = make_model(fake_context(engine), engine)
    request = GenerateRequest(prompts=[source], keep_last=keep_last)
    assert asyncio.run(prepare(model, request)).prompts == [left]


def test_without_it_a_long_prompt_is_refused() -> None:
    engine = ScriptedEngine()
    model = make_model(fake_context(engine), engine)
    with pytest.raises(TidemillError, match="301 tokens"):
        asyncio.run(prepare(model, GenerateRequest(prompts=["a" * 300])))


def prepared(request: GenerateRequest) -> Prepared:
    engine = ScriptedEngine()
    return asyncio.run(prepare(make_model(fake_context(engine), engine), request))


def test_as_many_as_fit_beside_the_output() -> None:
    prompts = ["a" * 300, "b"]
    for params, kept in (
        (SamplingParams(max_tokens=100), 156),
        (SamplingParams(), 224),  # an eighth of the context of 256 is left
        (SamplingParams(max_tokens=256), 1),
    ):
        request = GenerateRequest(prompts=prompts, sampling=params, keep_last=FITTING)
        if params.max_tokens == 256:
            with pytest.raises(TidemillError, match="max_tokens"):
                prepared(request)
            continue
        found = prepared(request)
        assert [len(ids) for ids in found.prompts] == [kept, 2]
        assert found.cut == ("prompt[0]",)


def test_a_conversation_is_cut_at_its_beginning() -> None:
    messages = [{"role": "user", "content": "x" * 300}]
    request = GenerateRequest(messages=messages, keep_last=40, names=Names("messages"))
    found = prepared(request)
    # Behind the text come the marks of its end and of the answer.
    assert found.prompts == [(*b"x" * 38, 257, 260)] and found.cut == ("messages",)
    short = GenerateRequest(messages=[{"role": "user", "content": "hi"}], keep_last=40)
    assert prepared(short).cut == ()


def test_start_tokens_are_added_where_that_is_asked() -> None:
    messages = [{"role": "user", "content": "hi"}]
    plain = prepared(GenerateRequest(messages=messages)).prompts[0]
    assert prepared(GenerateRequest(messages=messages, add_special=True)).prompts == [(256, *plain)]
    assert prepared(GenerateRequest(prompts=["hi"], add_special=False)).prompts == [(*b"hi",)]
    mixed = Parts(["hi", (7,)])
    assert prepared(GenerateRequest(prompts=[mixed])).prompts == [(256, *b"hi", 7)]
    assert prepared(GenerateRequest(prompts=[mixed], add_special=False)).prompts == [(*b"hi", 7)]


def test_texts_become_token_ids_and_ids_take_precedence() -> None:
    texts = TokenTexts([("ab", 2.0), ("bc", -3.0), ("d", 1.0)])
    sampling = SamplingParams(logit_bias={ord("d"): 9.0})
    found = prepared(GenerateRequest(prompts=["x"], sampling=sampling, texts=texts)).sampling[0]
    assert found.logit_bias == {97: 2.0, 98: -3.0, 99: -3.0, 100: 9.0}
    for wrong in ([("", 1.0)], [("x", 101.0)]):
        with pytest.raises(TidemillError) as caught:
            prepared(GenerateRequest(prompts=["x"], texts=TokenTexts(wrong)))
        assert caught.value.param == "logit_bias"


def test_banned_words_are_banned_at_a_beginning_and_after_a_space() -> None:
    sampling = SamplingParams(logit_bias={ord("x"): 5.0})
    single = TokenTexts(banned=["x"], biased=[("x", 3.0)])
    found = prepared(GenerateRequest(prompts=["x"], sampling=sampling, texts=single)).sampling[0]
    assert found.logit_bias == {ord("x"): -100.0}
    assert found.bad_words_ids == ((*b" x",),)
