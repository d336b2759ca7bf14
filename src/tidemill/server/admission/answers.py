"""Estimated size of an answer, and how much of it is buffered until it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.base.errors import bad_request
from tidemill.contract.sampling import SamplingParams

TEXT_BYTES = 8
"""Bytes of a token's text."""

ENTRY_BYTES = 80
"""Bytes of a logprob entry: the token as text, id and bytes, and its logprob."""


@dataclass(frozen=True, slots=True)
class AnswerSize:
    """Estimated bytes of an answer.

    Attributes:
        most: upper bound for the logprobs of the whole answer, at maximum length of every choice.
        fixed: buffered from the start until the answer is sent.
        per_token: buffered for each generated token.
    """

    most: int = 0
    fixed: int = 0
    per_token: int = 0


NOTHING_HELD = AnswerSize()


def answer_size(
    prompts: Sequence[tuple[int, ...]], sampling: Sequence[SamplingParams], *, streamed: bool
) -> AnswerSize:
    """Estimated size of a generation's answer.

    Args:
        prompts, sampling: token ids and resolved parameters, prompt by prompt.
        streamed: output is sent at once instead of being buffered.
    """
    params = sampling[0]
    entries = 0 if params.logprobs is None else 1 + params.logprobs
    per_token = ENTRY_BYTES * entries
    tokens = sum(len(prompt) for prompt in prompts)
    scored = 0 if params.prompt_logprobs is None else 1 + params.prompt_logprobs
    fixed = ENTRY_BYTES * scored * tokens
    most = params.n * fixed
    if not streamed:
        most += per_token * sum(s.outputs * (s.max_tokens or 0) for s in sampling)
    return AnswerSize(most, fixed, 0 if streamed else TEXT_BYTES + per_token)


def vectors_size(count: int, length: int, *, decimal: bool, encoded: bool) -> AnswerSize:
    """Size of `count` vectors of `length` numbers, in decimal, in base64 or in both."""
    size = count * length * (4 + 22 * decimal + 6 * encoded)
    return AnswerSize(size, size)


def check_answer(size: AnswerSize, params: SamplingParams, bound: int, *, streamed: bool) -> None:
    """Raise a 400 when an answer could exceed `bound` bytes."""
    if size.most <= bound:
        return
    causes = {"n": params.n, "logprobs (top_logprobs)": params.logprobs}
    causes["prompt_logprobs"] = params.prompt_logprobs
    if not streamed:
        causes["max_tokens"] = params.max_tokens
    settings = ", ".join(f"{name} {value}" for name, value in causes.items() if value is not None)
    param = "prompt_logprobs" if params.logprobs is None else "logprobs"
    streaming_helps = not streamed and params.n * size.fixed <= bound
    raise bad_request(
        param,
        f"with {settings} the answer could have {size.most} bytes of logprobs, and at most {bound} "
        "are sent (max_answer_bytes): ask for less of one of them"
        + (", or stream the answer" if streaming_helps else ""),
    )
