"""Resolves a client's sampling parameters for the engine; shared by all APIs."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.base.errors import ErrorKind, TidemillError, bad_request
from tidemill.base.ids import new_seed
from tidemill.contract.sampling import ALL_LOGPROBS, SamplingParams


class ContextLengthError(TidemillError):
    """A prompt, or a prompt and the output asked for, exceeds the context; both numbers named."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(ErrorKind.BAD_REQUEST, message, param=param)


def check_prompt(prompt_tokens: int, max_model_len: int, *, param: str) -> None:
    """Raise unless a prompt of so many tokens leaves room for at least one more.

    Raises:
        TidemillError: kind BAD_REQUEST naming `param`.
    """
    if prompt_tokens == 0:
        raise bad_request(param, f"{param} is empty; the model needs at least one token")
    if prompt_tokens >= max_model_len:
        raise ContextLengthError(
            param,
            f"the prompt has {prompt_tokens} tokens and the context holds {max_model_len}, "
            f"the output included; shorten the prompt to at most {max_model_len - 1} tokens",
        )


def check_input(tokens: int, most: int, *, param: str, bound: str = "") -> None:
    """Raise unless an input of so many tokens, without generated output, fits.

    Args:
        tokens: how many it has.
        most: how many are taken.
        param: names it.
        bound: what sets `most`, for the error, in brackets after a space.

    Raises:
        TidemillError: kind BAD_REQUEST naming `param`.
    """
    if tokens == 0:
        raise bad_request(param, f"{param} is empty; the model needs at least one token")
    if tokens > most:
        raise ContextLengthError(
            param, f"{param} has {tokens} tokens; at most {most} are taken{bound}: shorten it"
        )


def resolve(
    params: SamplingParams,
    *,
    prompt_tokens: int,
    max_model_len: int,
    vocab_size: int,
    defaults: Mapping[str, float | int] = {},
    prompt_param: str = "prompt",
    max_tokens_param: str = "max_tokens",
    clip: bool = False,
) -> SamplingParams:
    """Check `params` against the model and the prompt, and fill in what they leave out.

    A field that is left out has the model's value of `defaults`, else the neutral one. Without
    `max_tokens` the output may use what is left of the context; with `clip`, so it may where
    `max_tokens` is more. Logprobs of all tokens are as many as there are. A `top_p` of 0 becomes a
    temperature of 0, which chooses the same tokens.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    check_prompt(prompt_tokens, max_model_len, param=prompt_param)
    params.check_token_ids(vocab_size)
    left = max_model_len - prompt_tokens
    asked = params.max_tokens
    if clip and asked is not None:
        asked = min(asked, left)
    if asked is not None and asked > left:
        raise ContextLengthError(
            max_tokens_param,
            f"the prompt has {prompt_tokens} tokens and {max_tokens_param} asks for {asked} more, "
            f"{prompt_tokens + asked} in all; the context holds {max_model_len}. "
            f"Ask for at most {left}, or leave {max_tokens_param} out to use what is left",
        )
    if asked is None and params.min_tokens > left:
        raise ContextLengthError(
            "min_tokens",
            f"min_tokens ({params.min_tokens}) exceeds the {left} tokens that a prompt of "
            f"{prompt_tokens} leaves of the context of {max_model_len}",
        )
    filled = params.filled(defaults)
    greedy = {"temperature": 0.0, "top_p": 1.0} if filled.top_p == 0.0 else {}
    return filled.with_values(
        {
            **greedy,
            "max_tokens": left if asked is None else asked,
            "seed": new_seed() if params.seed is None else params.seed,
            "top_k": max(filled.top_k or 0, 0),
            **_counts(params, vocab_size),
        }
    )


def _counts(params: SamplingParams, vocab_size: int) -> dict[str, int]:
    """How many alternatives' logprobs are asked for, of the prompt and the output."""
    asked = {name: getattr(params, name) for name in ("logprobs", "prompt_logprobs")}
    return {
        name: vocab_size if count == ALL_LOGPROBS else min(count, vocab_size)
        for name, count in asked.items()
        if count is not None
    }
