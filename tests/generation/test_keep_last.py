"""Prompts of which only the end is used."""

from __future__ import annotations

import asyncio

import pytest
from helpers.live_server import fake_context, make_model
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import TidemillError
from tidemill.generation.prepare import prepare
from tidemill.generation.request import GenerateRequest, Source


@pytest.mark.parametrize(
    ("source", "keep_last", "left"),
    [
        ("tide", None, (256, *b"tide")),
        ("tide", 3, tuple(b"ide")),
        ("tide", 9, (256, *b"tide")),
        ([1, 2, 3], 2, (2, 3)),
        ("a" * 300, 255, (97,) * 255),  # it would not fit otherwise
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
