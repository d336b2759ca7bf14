"""What a prompt leaves of the context, and what an API's client left out."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.resolve import ContextLengthError, check_input, check_prompt, resolve
from tidemill.contract.sampling import SamplingParams


def resolved(params: SamplingParams, prompt: int = 10, **options: Any) -> SamplingParams:
    return resolve(params, prompt_tokens=prompt, max_model_len=50, vocab_size=100, **options)


def test_without_max_tokens_the_output_may_use_what_is_left() -> None:
    assert resolved(SamplingParams()).max_tokens == 40
    assert resolved(SamplingParams(max_tokens=7)).max_tokens == 7
    assert resolved(SamplingParams(max_tokens=40)).max_tokens == 40
    assert resolved(SamplingParams(min_tokens=40)).min_tokens == 40


def test_more_than_is_left_is_rejected_with_the_numbers() -> None:
    with pytest.raises(ContextLengthError) as caught:
        resolved(SamplingParams(max_tokens=41), max_tokens_param="max_completion_tokens")
    assert caught.value.param == "max_completion_tokens"
    assert caught.value.kind is ErrorKind.BAD_REQUEST
    for number in ("10 tokens", "41 more", "51 in all", "holds 50", "at most 40"):
        assert number in caught.value.message
    with pytest.raises(ContextLengthError, match=r"\(41\) exceeds the 40 tokens") as caught:
        resolved(SamplingParams(min_tokens=41))
    assert caught.value.param == "min_tokens"


def test_a_prompt_leaves_room_for_one_token_at_least() -> None:
    check_prompt(49, 50, param="messages")
    with pytest.raises(ContextLengthError, match="to at most 49 tokens") as caught:
        check_prompt(50, 50, param="messages")
    assert caught.value.param == "messages"
    with pytest.raises(TidemillError, match="empty") as empty:
        check_prompt(0, 50, param="messages")
    assert empty.value.param == "messages" and not isinstance(empty.value, ContextLengthError)
    with pytest.raises(ContextLengthError) as caught:
        resolved(SamplingParams(), 50, prompt_param="prompt[3]")
    assert caught.value.param == "prompt[3]"


def test_an_input_may_fill_what_is_taken() -> None:
    check_input(50, 50, param="input")
    with pytest.raises(ContextLengthError, match="51 tokens; at most 50"):
        check_input(51, 50, param="input")
    with pytest.raises(TidemillError, match="empty"):
        check_input(0, 50, param="input")


def test_token_ids_are_the_models() -> None:
    assert resolved(SamplingParams(stop_token_ids=(99,))).stop_token_ids == (99,)
    for params in (SamplingParams(stop_token_ids=(100,)), SamplingParams(logit_bias={100: 1.0})):
        with pytest.raises(TidemillError, match="between 0 and 99"):
            resolved(params)


def test_seeds_are_kept_or_drawn() -> None:
    assert resolved(SamplingParams(seed=0)).seed == 0
    drawn = {resolved(SamplingParams()).seed for _ in range(20)}
    assert len(drawn) == 20 and None not in drawn


@pytest.mark.parametrize(("asked", "found"), [(None, 0), (-1, 0), (0, 0), (5, 5)])
def test_every_spelling_of_no_top_k_is_0(asked: int | None, found: int) -> None:
    assert resolved(SamplingParams(top_k=asked)).top_k == found


def test_the_request_comes_before_the_model_and_that_before_neutral() -> None:
    defaults = {"temperature": 0.5, "top_p": 0.0}
    model = resolved(SamplingParams(), defaults=defaults)
    assert (model.temperature, model.top_p) == (0.0, 1.0), "a top_p of 0 is greedy"
    own = resolved(SamplingParams(temperature=0.7, top_p=0.9), defaults=defaults)
    assert (own.temperature, own.top_p, own.min_p) == (0.7, 0.9, 0.0)


def test_logprobs_of_all_tokens_are_as_many_as_there_are() -> None:
    found = resolved(SamplingParams(logprobs=-1, prompt_logprobs=200))
    assert (found.logprobs, found.prompt_logprobs) == (100, 100)
    assert resolved(SamplingParams(logprobs=0)).logprobs == 0
    assert resolved(SamplingParams()).logprobs is None
