"""From TGI's parameters to the internal request."""

from __future__ import annotations

from typing import Any

from tidemill.base.errors import bad_request
from tidemill.contract.sampling import MAX_CHOICES, NEUTRAL, SamplingParams
from tidemill.generation.caller import Caller
from tidemill.generation.request import GenerateRequest, Names
from tidemill.server.dialects.tgi.schema import TgiGrammar, TgiInputs, TgiParameters
from tidemill.text.answering import OutputRequest

DEFAULT_NEW_TOKENS = 100
"""TGI's bound of an output that names none."""

_PARAM = "parameters."

FIELDS = {
    **{name: name for name in ("temperature", "top_k", "top_p", "typical_p", "seed")},
    **{name: name for name in ("repetition_penalty", "frequency_penalty")},
    "max_tokens": "max_new_tokens",
    "n": "best_of",
}
"""Parameters -> members of `parameters` that give them."""

# TGI applies its own defaults, and not those that a model's makers recommend.
_DEFAULTS: dict[str, Any] = {**NEUTRAL, "max_tokens": DEFAULT_NEW_TOKENS}

PARAMETERS = {
    name: _PARAM + member
    for name, member in (*FIELDS.items(), ("stop", "stop"), ("logprobs", "top_n_tokens"))
}
"""Parameters of `SamplingParams` -> the members of a body that give them."""

SENT_AS = {
    **PARAMETERS,
    "adapter": "parameters.adapter_id",
    "truncate_prompt_tokens": "parameters.truncate",
    "guided_json": "parameters.grammar.value",
    "guided_regex": "parameters.grammar.value",
}
"""Names of internal fields in this dialect, for errors."""


def generate_request(
    body: TgiInputs, caller: Caller, arrival: float, *, streamed: bool
) -> GenerateRequest:
    """The request of a body.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    asked = body.parameters or TgiParameters()
    sampled = _samples(asked)
    _check(asked, sampled=sampled, streamed=streamed)
    given = {
        name: value
        for name, member in FIELDS.items()
        if (value := getattr(asked, member)) is not None
    }
    if not sampled:
        given["temperature"] = 0.0
    if asked.seed is not None:
        given["seed"] = _signed(asked.seed)
    sampling = SamplingParams(
        **{**_DEFAULTS, **given},
        stop=tuple(asked.stop or ()),
        include_stop_str_in_output=True,  # TGI's texts have the stop sequence that ended them
        logprobs=_logprobs(asked, streamed=streamed),
        prompt_logprobs=0 if asked.details and asked.decoder_input_details else None,
    )
    return GenerateRequest(
        prompts=[body.inputs],
        adapter=asked.adapter_id or None,
        sampling=sampling,
        output=OutputRequest() if asked.grammar is None else _output(asked.grammar),
        keep_last=asked.truncate,
        clip_max_tokens=asked.max_new_tokens is None,
        caller=caller,
        arrival=arrival,
        names=Names("inputs", _PARAM + "max_new_tokens"),
    )


def _samples(asked: TgiParameters) -> bool:
    """True where tokens are drawn: TGI is greedy unless something asks for sampling."""
    return (
        bool(asked.do_sample)
        or asked.temperature not in (None, 1.0)
        or asked.top_k not in (None, 0)
        or (asked.top_p is not None and asked.top_p < 1.0)
        or (asked.typical_p is not None and asked.typical_p < 1.0)
    )


def _check(asked: TgiParameters, *, sampled: bool, streamed: bool) -> None:
    best_of, top = asked.best_of, asked.top_n_tokens
    if best_of is not None:
        at = _PARAM + "best_of"
        if not 1 <= best_of <= MAX_CHOICES:
            raise bad_request(at, f"{at} must be between 1 and {MAX_CHOICES}, got {best_of}")
        if best_of > 1 and streamed:
            raise bad_request(at, f"{at} cannot be streamed: the best is known at the end")
        if best_of > 1 and not sampled:
            raise bad_request(at, f"{at} above 1 needs sampling: set parameters.do_sample to true")
    if asked.decoder_input_details:
        at = _PARAM + "decoder_input_details"
        if streamed:
            raise bad_request(at, f"{at} cannot be streamed; ask for a whole answer")
        if not asked.details:
            raise bad_request(at, f"{at} needs parameters.details to be true")
    if top and not (streamed or asked.details):
        at = _PARAM + "top_n_tokens"
        raise bad_request(at, f"{at} needs parameters.details to be true")


def _logprobs(asked: TgiParameters, *, streamed: bool) -> int | None:
    if streamed or asked.details or (asked.best_of or 1) > 1:
        return asked.top_n_tokens or 0
    return None


def _output(grammar: TgiGrammar) -> OutputRequest:
    value = grammar.value
    if grammar.type == "regex":
        return OutputRequest.read({"guided_regex": value})
    if grammar.type == "json_schema":
        if not isinstance(value, dict) or "schema" not in value:
            at = "parameters.grammar.value"
            raise bad_request(at, f"{at} must be an object with the member schema")
        value = value["schema"]
    return OutputRequest.read({"guided_json": value})


def _signed(seed: int) -> int:
    """TGI's unsigned seeds as the signed ones of 64 bits that samplers take."""
    return seed - 2**64 if seed >= 2**63 else seed
