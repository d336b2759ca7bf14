"""From a request body to resolved sampling parameters, and the report of effective settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.base.errors import bad_request
from tidemill.base.ids import new_seed
from tidemill.contract.program import Grammar
from tidemill.contract.resolve import resolve
from tidemill.contract.sampling import MAX_LOGPROBS, SamplingParams
from tidemill.server.context import PRESETS, ServerContext
from tidemill.server.dialects.openai import schema
from tidemill.server.host.generation import Generation

# Fields that are copied unchanged if the request has them.
_PLAIN = (
    *PRESETS,
    *("presence_penalty", "frequency_penalty", "seed", "min_tokens", "ignore_eos", "n"),
)


def sampling_of(
    request: schema.Generation,
    context: ServerContext,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The request's parameters; `resolve_all` fills in absent ones."""
    values: dict[str, Any] = {
        name: value for name in _PLAIN if (value := getattr(request, name)) is not None
    }
    stop = request.stop or ()
    values["stop"] = (stop,) if isinstance(stop, str) else tuple(text for text in stop if text)
    values["stop_token_ids"] = tuple(request.stop_token_ids or ())
    values["logit_bias"] = {int(k): float(v) for k, v in (request.logit_bias or {}).items()}
    return SamplingParams(
        **values, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )


def resolve_all(
    params: SamplingParams,
    prompts: Sequence[tuple[int, ...]],
    context: ServerContext,
    *,
    prompt_param: str,
    max_tokens_param: str,
) -> list[SamplingParams]:
    """Resolved parameters of each prompt.

    A seed in the request applies to every prompt, as in separate requests. Drawn seeds differ, so
    that equal prompts of one request do not get equal answers.
    """
    info = context.info
    single = len(prompts) == 1
    return [
        resolve(
            params if params.seed is not None else params.with_values({"seed": new_seed()}),
            prompt_tokens=len(prompt),
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            defaults=context.defaults,
            prompt_param=prompt_param if single else f"{prompt_param}[{index}]",
            max_tokens_param=max_tokens_param,
        )
        for index, prompt in enumerate(prompts)
    ]


def chat_max_tokens(request: schema.ChatRequest) -> tuple[int | None, str]:
    """The bound on output tokens, and the name of the field that set it."""
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise bad_request(
            "max_tokens",
            f"max_tokens ({old}) and max_completion_tokens ({new}) contradict each other; "
            "send one of them",
        )
    if new is not None:
        if not 1 <= new < schema.INT32:
            raise bad_request(
                "max_completion_tokens",
                f"max_completion_tokens must be between 1 and {schema.INT32 - 1}, got {new}",
            )
        return new, "max_completion_tokens"
    return old, "max_tokens"


def chat_logprobs(request: schema.ChatRequest) -> int | None:
    """Requested number of alternatives in a chat; None for no logprobs."""
    top = request.top_logprobs
    if not request.logprobs:
        if top:
            raise bad_request("top_logprobs", "top_logprobs needs logprobs to be true")
        return None
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise bad_request(
            "top_logprobs", f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {top}"
        )
    return top or 0


def whole_prompt_logprobs(request: schema.Generation) -> int | None:
    """Requested number of alternatives for prompt tokens; not available for streams."""
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request(
            "prompt_logprobs", "prompt_logprobs and stream exclude each other; send one of them"
        )
    return request.prompt_logprobs


def check_stream_options(request: schema.Generation) -> bool:
    """Whether a usage chunk is requested."""
    options = request.stream_options
    if options is None:
        return False
    for name in ("include_usage", "continuous_usage_stats"):
        if getattr(options, name) and not request.stream:
            param = f"stream_options.{name}"
            raise bad_request(param, f"{param} is only allowed when stream is true")
    if options.continuous_usage_stats and not options.include_usage:
        param = "stream_options.continuous_usage_stats"
        raise bad_request(param, f"{param} needs stream_options.include_usage")
    return bool(options.include_usage)


_TIERS = {"priority": -1, "flex": 1}


def priority_of(request: schema.Generation) -> int:
    """The priority among one client's requests; smaller numbers run first."""
    tier, priority = request.service_tier, request.priority
    if priority is None:
        return _TIERS.get(tier or "", 0)
    if priority and tier in _TIERS:
        raise bad_request("priority", "priority and service_tier exclude each other; send one")
    if not -schema.INT32 <= priority < schema.INT32:
        raise bad_request("priority", f"priority must be an integer of 32 bits, got {priority}")
    return priority


def effective(
    context: ServerContext, request: schema.Generation, generation: Generation
) -> dict[str, Any]:
    """The effective settings: the `tidemill` object of a response (promise 2)."""
    info = context.info
    params = generation.sampling[0]
    sampling = {
        name: getattr(params, name)
        for name in SamplingParams.__struct_fields__
        if name not in ("seed", "max_tokens", "logit_bias")
    }
    # Keys are strings, as in the request.
    sampling["logit_bias"] = {str(k): v for k, v in params.logit_bias.items()}
    per_prompt = generation.sampling
    sampling["seed"] = [p.seed for p in per_prompt] if len(per_prompt) > 1 else params.seed
    tokens = [p.max_tokens for p in per_prompt]
    sampling["max_tokens"] = tokens if len(tokens) > 1 else params.max_tokens
    from_model = [name for name in PRESETS if name in context.defaults]
    return {
        "sampling": sampling,
        "from_model_defaults": [n for n in from_model if getattr(request, n) is None],
        "context_length": info.max_model_len,
        "prompt_tokens": generation.prompt_tokens,
        "cached_tokens": generation.cached_tokens,
        "prefix_caching": info.prefix_caching,
        "backend": info.backend,
        "device": info.device,
        "isa": info.isa,
        "dtype": info.dtype,
        "quantization": info.quantization,
        "kv_dtype": info.kv_dtype,
        "speculation": None,
        **_output_rules(context, generation),
    }


def _output_rules(context: ServerContext, generation: Generation) -> dict[str, Any]:
    """The constraint on the answer and the formats in which it was parsed."""
    phases, form = generation.rules.program.phases, context.chat.form
    grammars = [p for p in phases if isinstance(p, Grammar)]
    return {
        "tool_format": form.name,
        "reasoning_format": None if form.think is None else form.think.close.strip(),
        "thinking_token_budget": generation.rules.budget,
        "constraint": grammars[0].kind if grammars else None,
        "constraint_from": grammars[0].param if grammars else None,
    }
