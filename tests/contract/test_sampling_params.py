"""Every field's range is checked, and the error names the field."""

from __future__ import annotations

import math

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.resolve import resolve
from tidemill.contract.sampling import SamplingParams

BAD: list[tuple[str, dict]] = [
    *(("temperature", {"temperature": t}) for t in (-0.1, 101.0, math.nan, math.inf)),
    *(("top_p", {"top_p": p}) for p in (-0.1, -1.0, 1.01, math.nan)),
    ("top_k", {"top_k": -2}),
    *(("min_p", {"min_p": p}) for p in (-0.1, 1.1, math.nan)),
    ("presence_penalty", {"presence_penalty": 2.1}),
    ("frequency_penalty", {"frequency_penalty": -2.1}),
    *(("repetition_penalty", {"repetition_penalty": p}) for p in (0.0, -1.0, math.inf)),
    *(("seed", {"seed": s}) for s in (-(2**63) - 1, 2**63)),
    *(("max_tokens", {"max_tokens": m}) for m in (0, -5, 2**31)),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
    *(("n", {"n": n}) for n in (0, 129)),
    *(("logprobs", {"logprobs": n}) for n in (-2, 2**20 + 1)),
    ("prompt_logprobs", {"prompt_logprobs": -2}),
    *(("max_tokens", {"max_tokens": m}) for m in ("5", 1.5, True)),
    *(("temperature", {"temperature": t}) for t in ("hot", True)),
    *(("seed", {"seed": s}) for s in (1.5, "1")),
    ("ignore_eos", {"ignore_eos": "no"}),
    *(("stop", {"stop": s}) for s in ("", None, [1], {"a": 1}, 5)),
    *(("stop_token_ids", {"stop_token_ids": s}) for s in (5, ["1"], [True])),
    *(("logit_bias", {"logit_bias": b}) for b in ([1], {"1": 2.0}, {1: "x"})),
    ("stop", {"stop": ("",)}),
    ("stop", {"stop": ("x",) * 17}),
    ("stop", {"stop": ("x" * 1025,)}),
    ("stop_token_ids", {"stop_token_ids": (100,)}),
    ("stop_token_ids", {"stop_token_ids": (1,) * 257}),
    ("logit_bias", {"logit_bias": {100: 1.0}}),
    ("logit_bias", {"logit_bias": {-1: 1.0}}),
    ("logit_bias", {"logit_bias": {1: 101.0}}),
    ("logit_bias", {"logit_bias": {1: math.nan}}),
]


@pytest.mark.parametrize(("field", "values"), BAD)
def test_out_of_range_names_the_field(field: str, values: dict) -> None:
    with pytest.raises(TidemillError) as caught:
        SamplingParams(**values).validate(vocab_size=100)
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    assert caught.value.param == field
    assert field in caught.value.message


@pytest.mark.parametrize("values", [{"temperature": -1}, {"top_k": 1.5}, {"logit_bias": {1: 101}}])
def test_what_is_wrong_fails_where_it_is_made(values: dict) -> None:
    with pytest.raises(TidemillError):
        SamplingParams(**values)


def test_a_field_that_is_left_out_is_the_models_default() -> None:
    defaults = {"temperature": 0.5, "top_k": 9}
    numbers = {"prompt_tokens": 1, "max_model_len": 9, "vocab_size": 9, "defaults": defaults}
    left_out = resolve(SamplingParams(), **numbers)
    assert (left_out.temperature, left_out.top_k, left_out.top_p) == (0.5, 9, 1.0)
    given = resolve(SamplingParams(temperature=1.0, top_k=0), **numbers)
    assert (given.temperature, given.top_k, given.min_p) == (1.0, 0, 0.0)
    assert SamplingParams().filled().penalized is False is SamplingParams().penalized


def test_edges_are_allowed() -> None:
    SamplingParams(
        temperature=0.0, top_p=1.0, top_k=-1, min_p=1.0, presence_penalty=-2.0,
        frequency_penalty=2.0, seed=2**63 - 1, max_tokens=1, min_tokens=1, n=128, logprobs=20,
        stop_token_ids=(99,), logit_bias={0: -100.0, 99: 100.0},
    ).validate(vocab_size=100)  # fmt: skip


def test_one_stop_string_need_not_be_a_tuple() -> None:
    assert SamplingParams(stop="ab").validate().stop == ("ab",)


def test_greedy_and_penalized() -> None:
    assert SamplingParams(temperature=0.0).greedy
    assert not SamplingParams(temperature=0.5).greedy
    assert not SamplingParams().penalized
    assert SamplingParams(repetition_penalty=1.1).penalized


def test_resolution_reads_a_top_p_of_zero_as_greedy_and_keeps_a_signed_seed() -> None:
    params = SamplingParams(top_p=0.0, seed=-(2**63))
    found = resolve(params, prompt_tokens=1, max_model_len=10, vocab_size=100)
    assert (found.temperature, found.top_p, found.seed) == (0.0, 1.0, -(2**63))
