"""From a body to the internal request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from tidemill.base.errors import bad_request
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import Caller
from tidemill.generation.request import Gap, GenerateRequest, Names, Parts, Source, TokenTexts
from tidemill.server.access.limits import Limits
from tidemill.server.dialects.adapters import asked_adapters
from tidemill.server.dialects.biases import biases_of
from tidemill.server.dialects.id_lists import Ids
from tidemill.server.dialects.llamacpp.schema import (
    LlamaCompletion,
    LlamaGeneration,
    LlamaInfill,
    samplers_of,
)
from tidemill.server.dialects.sampler_order import OFF
from tidemill.server.dialects.sampling_fields import breakers_of
from tidemill.text.answering import OutputRequest

FIELDS = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "ignore_eos")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    **{name: name for name in ("repeat_last_n", "typical_p", "top_n_sigma")},
    **{name: name for name in ("xtc_probability", "xtc_threshold")},
    **{name: name for name in ("dynatemp_range", "dynatemp_exponent")},
    **{name: name for name in ("dry_multiplier", "dry_base", "dry_allowed_length")},
    "dry_penalty_last_n": "dry_penalty_last_n",
    "repetition_penalty": "repeat_penalty",
    "max_tokens": "n_predict",
    "logprobs": "n_probs",
    "n": "n_cmpl",
}
"""Parameters -> members of a body that give them unchanged."""

_OWN_FORM = ("stop", "logit_bias", "dry_sequence_breakers")
PARAMETERS = {**FIELDS, **{name: name for name in _OWN_FORM}}
"""Parameters of `SamplingParams` -> the members of a body that give them."""


def name_fields(request: Request) -> None:
    """Let errors name sampling parameters as the client sent them."""
    sent = {name: field for name, field in FIELDS.items() if name != field}
    request.state.sent_as.update(sent)


def sources_of(prompt: Any, limit: int, param: str = "prompt") -> list[Source]:
    """The prompts of a request: one, or a list of them. A list of texts is several prompts, one of
    texts and ids is one.

    Raises:
        TidemillError: kind BAD_REQUEST when there are more than `limit`, or none.
    """
    if isinstance(prompt, dict):
        return [prompt["prompt_string"]]
    if isinstance(prompt, str | Ids) or (prompt and all(type(one) is int for one in prompt)):
        return [prompt]
    if not prompt:
        raise bad_request(param, f"{param} is empty")
    if len(prompt) > limit:
        raise bad_request(param, f"at most {limit} at once are taken as {param}, got {len(prompt)}")
    if any(type(one) is int for one in prompt):
        return [_source(prompt)]
    return [one if isinstance(one, str | Ids) else _source(one) for one in prompt]


def _source(prompt: Any) -> Source:
    """A prompt that is an object with a text, or a list: of ids, or of texts and ids."""
    if isinstance(prompt, dict):
        text: str = prompt["prompt_string"]
        return text
    if all(type(one) is int for one in prompt):
        ids: list[int] = prompt
        return ids
    return Parts([one if isinstance(one, str) else (one,) for one in prompt])


def completion_request(
    body: LlamaCompletion, caller: Caller, arrival: float, limits: Limits
) -> GenerateRequest:
    """The request of prompts that are continued.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    sources = sources_of(body.prompt, limits.max_prompts)
    return _request(body, sources, None, caller, arrival, Names("prompt", "n_predict"))


def infill_request(body: LlamaInfill, caller: Caller, arrival: float) -> GenerateRequest:
    """The request of a gap that is filled; see `completion_request`."""
    files = [(one.filename or "tmp", one.text) for one in body.input_extra or ()]
    gap = Gap(body.input_suffix or "", files, body.prompt or "")
    names = Names("input_prefix", "n_predict", suffix="input_suffix")
    return _request(body, [body.input_prefix or ""], gap, caller, arrival, names)


def _request(
    body: LlamaGeneration,
    sources: Sequence[Source],
    gap: Gap | None,
    caller: Caller,
    arrival: float,
    names: Names,
) -> GenerateRequest:
    # Editors send n_predict 0 to have a prompt in the cache: a step samples one token in any case.
    scored = body.n_predict == 0
    fields = {"grammar": body.grammar, "json_schema": body.json_schema}
    return GenerateRequest(
        prompts=sources,
        gap=gap,
        sampling=_sampling(body, scored=scored),
        output=OutputRequest.read(fields),
        texts=TokenTexts(biases_of(body.logit_bias or [])[1]),
        scored=scored,
        ends_with_context=True,
        adapter=asked_adapters(body.lora),
        caller=caller,
        arrival=arrival,
        names=names,
    )


def _sampling(body: LlamaGeneration, *, scored: bool) -> SamplingParams:
    values: dict[str, Any] = {
        name: value for name, field in FIELDS.items() if (value := getattr(body, field)) is not None
    }
    if scored:
        values["max_tokens"] = 1
    if body.samplers is not None:
        applied = samplers_of(body.samplers)
        if "typical_p" in applied:
            applied = [*applied, "typ_p"]
        for sampler, without in OFF.items():
            if sampler not in applied:
                values |= without
    if body.dry_sequence_breakers is not None:
        values["dry_sequence_breakers"] = tuple(breakers_of(body.dry_sequence_breakers))
    stop = body.stop or ()
    values["stop"] = (stop,) if isinstance(stop, str) else tuple(text for text in stop if text)
    values["logit_bias"] = biases_of(body.logit_bias or [])[0]
    return SamplingParams(**values)
