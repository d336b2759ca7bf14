"""What a model brings to every request, and that the request's own values precede it."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.contract.sampling import SamplingParams
from tidemill.generation.preset import NO_PRESET, Preset
from tidemill.generation.request import GenerateRequest

SYSTEM = {"role": "system", "content": "Sing."}
TURN = {"role": "user", "content": "A"}
HI = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([HI], [SYSTEM, TURN, HI]),
        ((HI,), [SYSTEM, TURN, HI]),
        ([{"role": "system", "content": "x"}, HI], [{"role": "system", "content": "x"}, TURN, HI]),
        ([{"role": "developer", "content": ""}], [{"role": "developer", "content": ""}, TURN]),
        ([], []),
        ("Hi", "Hi"),
        (["Hi"], [SYSTEM, TURN, "Hi"]),
    ],
)
def test_conversations(messages: Any, expected: Any) -> None:
    request = GenerateRequest(messages=messages)
    assert Preset("Sing.", (TURN,)).applied(request).messages == expected


def test_without_a_system_message_or_first_turns() -> None:
    request = GenerateRequest(messages=[HI])
    assert NO_PRESET.applied(request) is request
    assert Preset(sampling={"top_k": 1}).applied(request).messages == [HI]
    assert Preset(messages=(TURN,)).applied(request).messages == [TURN, HI]
    prompts = GenerateRequest(prompts=["a"])
    assert Preset("Sing.", (TURN,)).applied(prompts).messages is None


def test_sampling_values() -> None:
    preset = Preset(sampling={"temperature": 0.5, "stop": ("a",), "max_tokens": 3, "seed": 1})
    given = SamplingParams(temperature=0.0, seed=0, top_p=0.5)
    sampling = preset.applied(GenerateRequest(prompts=["a"], sampling=given)).sampling
    assert sampling == SamplingParams(temperature=0.0, seed=0, top_p=0.5, stop=("a",), max_tokens=3)
    assert given.max_tokens is None, "the request itself stays as it is"


def test_a_beam_search_takes_nothing_that_only_chooses_among_tokens() -> None:
    preset = Preset(sampling={"temperature": 0.5, "top_k": 9, "typical_p": 0.9, "max_tokens": 3})
    asked = GenerateRequest(messages=[HI], sampling=SamplingParams(beam_width=2))
    found = preset.applied(asked).sampling.validate()
    assert (found.temperature, found.top_k, found.typical_p, found.max_tokens) == (None, None, 1, 3)
    filled = found.filled({"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1})
    assert (filled.temperature, filled.top_p, filled.repetition_penalty) == (1.0, 1.0, 1.1)
