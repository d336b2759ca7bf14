"""The report of effective settings, for requests that ask for it."""

from __future__ import annotations

from typing import Any

from tidemill.contract.program import Grammar
from tidemill.contract.sampling import NEUTRAL, SamplingParams
from tidemill.contract.speculation import drafters_of
from tidemill.server.host.generation import Generation
from tidemill.server.host.served import ServedModel


def effective(model: ServedModel, generation: Generation) -> dict[str, Any]:
    """The effective settings: the `tidemill` object of a response (promise 2)."""
    info, prepared = model.info, generation.prepared
    params, asked = prepared.sampling[0], prepared.request.sampling
    sampling = {
        name: getattr(params, name)
        for name in SamplingParams.__struct_fields__
        if name not in ("seed", "max_tokens", "logit_bias")
    }
    # Keys are strings, as in the request.
    sampling["logit_bias"] = {str(k): v for k, v in params.logit_bias.items()}
    per_prompt = prepared.sampling
    sampling["seed"] = [p.seed for p in per_prompt] if len(per_prompt) > 1 else params.seed
    tokens = [p.max_tokens for p in per_prompt]
    sampling["max_tokens"] = tokens if len(tokens) > 1 else params.max_tokens
    from_model = [name for name in NEUTRAL if params.takes(name) and name in model.defaults]
    return {
        "sampling": sampling,
        "from_model_defaults": [n for n in from_model if getattr(asked, n) is None],
        "context_length": prepared.request.context or info.max_model_len,
        "prompt_tokens": generation.prompt_tokens,
        "cached_tokens": generation.cached_tokens,
        "prefix_caching": info.prefix_caching,
        "backend": info.backend,
        "device": info.device,
        "isa": info.isa,
        "dtype": info.dtype,
        "quantization": info.quantization,
        "kv_dtype": info.kv_dtype,
        "speculation": _speculation(model, generation),
        **_output_rules(model, generation),
    }


def _speculation(model: ServedModel, generation: Generation) -> dict[str, Any] | None:
    """What drafted for the request, and how much of it became output; None: nothing could."""
    prepared = generation.prepared
    info, asked = model.info, prepared.request.speculation
    drafters = drafters_of(
        info.speculation, info.drafters, asked, expected=bool(prepared.prediction)
    )
    if not drafters or prepared.sampling[0].beam_search:
        return None
    accepted, rejected = generation.drafts
    return {"drafters": drafters, "accepted_tokens": accepted, "rejected_tokens": rejected}


def _output_rules(model: ServedModel, generation: Generation) -> dict[str, Any]:
    """The constraint on the answer and the formats in which it was parsed."""
    rules, form = generation.prepared.rules, model.chat.form
    grammars = [p for p in rules.program.phases if isinstance(p, Grammar)]
    return {
        "tool_format": form.name,
        "reasoning_format": None if form.think is None else form.think.close.strip(),
        "thinking_token_budget": rules.budget,
        "constraint": grammars[0].kind if grammars else None,
        "constraint_from": grammars[0].param if grammars else None,
    }
