"""From a body to the internal request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request

from tidemill.base.errors import bad_request
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import ANONYMOUS, Caller
from tidemill.generation.prepare import rendered
from tidemill.generation.request import Cut, Gap, GenerateRequest, Names, Source, TokenTexts
from tidemill.server.access.caller import caller_of
from tidemill.server.access.limits import Limits
from tidemill.server.dialects.adapters import asked_adapters
from tidemill.server.dialects.biases import bans_of, biases_of
from tidemill.server.dialects.body import parse_body
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.sampling_fields import SAMPLING_FIELDS, sampling_values
from tidemill.text.answering import ChatSide, OutputRequest
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.template import ChatTemplate

_OWN_FORM = ("stop", "stop_token_ids", "logit_bias", "max_tokens", "prompt_logprobs")

COMPLETION_PARAMETERS = {name: name for name in (*SAMPLING_FIELDS, *_OWN_FORM, "logprobs")}
CHAT_PARAMETERS = {**COMPLETION_PARAMETERS, "logprobs": "top_logprobs"}
RESPONSE_PARAMETERS = {
    name: member
    for name, member in {**CHAT_PARAMETERS, "max_tokens": "max_output_tokens"}.items()
    if name not in ("n", "prompt_logprobs")  # responses have one choice, and nothing of the prompt
}
"""Parameters of `SamplingParams` -> the members of a body that give them."""


def chat_request(body: schema.ChatRequest, caller: Caller, arrival: float) -> GenerateRequest:
    """A conversation's request.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    max_tokens, max_tokens_param = chat_max_tokens(body)
    sampling = sampling_of(
        body,
        max_tokens=max_tokens,
        logprobs=chat_logprobs(body),
        prompt_logprobs=whole_prompt_logprobs(body),
    )
    return GenerateRequest(
        messages=template_messages(body.messages),
        sampling=sampling,
        output=OutputRequest.read(asdict(body)),
        prompt_options=prompt_options(body),
        add_special=body.add_special_tokens,
        caller=caller,
        arrival=arrival,
        names=Names("messages", max_tokens_param, "num_ctx"),
        prediction=_predicted(body.prediction),
        **prompt_fields(body),
    )


def _predicted(prediction: schema.Prediction | None) -> str:
    content = None if prediction is None else prediction.content
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)


def completion_request(
    body: schema.CompletionRequest, sources: Sequence[Source], caller: Caller, arrival: float
) -> GenerateRequest:
    """The request of prompts that are continued; see `chat_request`."""
    _check_suffix(body)
    scored = body.max_tokens == 0  # only the prompt is scored; a step samples one token in any case
    sampling = sampling_of(
        body,
        max_tokens=1 if scored else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=_prompt_logprobs(body),
    )
    return GenerateRequest(
        prompts=sources,
        sampling=sampling,
        output=OutputRequest.read(asdict(body)),
        scored=scored,
        gap=None if body.suffix is None else Gap(body.suffix),
        add_special=body.add_special_tokens,
        caller=caller,
        arrival=arrival,
        names=Names(context="num_ctx"),
        **prompt_fields(body),
    )


def _check_suffix(body: schema.CompletionRequest) -> None:
    if body.suffix is None:
        return
    for name, why in (
        ("echo", "the output is amid the text"),
        ("truncate_prompt_tokens", "the marks of a gap are put around whole texts"),
        ("add_special_tokens", "the marks of a gap begin the prompt"),
    ):
        if getattr(body, name):
            raise bad_request(name, f"{name} and suffix exclude each other: {why}")


def prompt_fields(body: schema.Generation) -> dict[str, Any]:
    """Members of a `GenerateRequest` that all bodies of a generation give alike."""
    _, biased = biases_of(body.logit_bias or {})
    return {
        "texts": TokenTexts(biased, tuple(body.bad_words or ()), bool(body.ban_eos_token)),
        "context": body.num_ctx,
        "keep_last": _keep_last(body),
        "cut": Cut.END if body.truncation_side == "right" else Cut.START,
        "speculation": body.speculation,
        "adapter": asked_adapters(body.lora, body.lora_path),
    }


def _keep_last(body: schema.Generation) -> int | None:
    """Tokens of each prompt that are used; None: all."""
    whole = body.truncation_length
    if whole is None:
        return body.truncate_prompt_tokens
    if body.truncate_prompt_tokens is not None:
        raise bad_request(
            "truncation_length",
            "truncation_length and truncate_prompt_tokens exclude each other; send one",
        )
    asked = body.max_tokens or getattr(body, "max_completion_tokens", None) or 0
    if whole <= asked:
        raise bad_request(
            "truncation_length",
            f"truncation_length ({whole}) must exceed max_tokens ({asked}): it bounds prompt and "
            "output together",
        )
    return whole - asked


def prompt_text(template: ChatTemplate, chat: ChatSide, data: bytes) -> str:
    """The prompt that the JSON text of a chat request becomes; needs no model.

    Raises:
        Rejection, TidemillError: the request is wrong.
    """
    asked = chat_request(parse_body(schema.ChatRequest, data, Limits()), ANONYMOUS, 0.0)
    return rendered(template, chat, asked)[0]


def split_prompts(prompt: object, limit: int, *, param: str = "prompt") -> list[Source]:
    """The prompts of a request: one string, one list of ids, or a list of either.

    Raises:
        TidemillError: kind BAD_REQUEST when there are more than `limit`.
    """
    if isinstance(prompt, str):
        return [prompt]
    assert isinstance(prompt, list)
    if isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > limit:
        raise bad_request(param, f"at most {limit} at once are taken as {param}, got {len(prompt)}")
    return prompt


def template_messages(messages: Sequence[schema.Message]) -> list[dict[str, Any]]:
    """Messages as `render_prompt` takes them."""
    return [{k: v for k, v in asdict(m).items() if v is not None} for m in messages]


def prompt_options(body: schema.ChatRequest | schema.TokenizeRequest) -> PromptOptions:
    """The options of a body that concern the prompt."""
    return PromptOptions(
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        documents=body.documents,
        kwargs=body.chat_template_kwargs,
    )


def sampling_of(
    request: schema.Generation,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The request's parameters; the model's defaults fill in absent ones later."""
    values = sampling_values(request)
    if request.use_beam_search:
        _search(values)
    stop = request.stop or ()
    values["stop"] = (stop,) if isinstance(stop, str) else tuple(text for text in stop if text)
    values["stop_token_ids"] = tuple(request.stop_token_ids or ())
    bias, _ = biases_of(request.logit_bias or {})
    values["logit_bias"] = bias | bans_of(request.custom_token_bans or [])
    return SamplingParams(
        **values, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )


def _search(values: dict[str, Any]) -> None:
    """Make the parameters those of a beam search: `use_beam_search`."""
    width = values.get("beam_width") or values.pop("best_of", None) or values.get("n", 1)
    values["beam_width"] = width
    if width == 1:  # greedy, as in transformers
        if values.get("temperature", 0.0) not in (0.0, 1.0):
            raise bad_request("temperature", "temperature has no effect with use_beam_search")
        values["temperature"] = 0.0


def _prompt_logprobs(body: schema.CompletionRequest) -> int | None:
    """Alternatives per token of the prompt: as requested, and as `echo` shows them."""
    requested = whole_prompt_logprobs(body)
    echoed = body.logprobs if body.echo else None
    return max((n for n in (requested, echoed) if n is not None), default=None)


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
    return top or 0


def whole_prompt_logprobs(request: schema.Generation) -> int | None:
    """Requested number of alternatives for prompt tokens; not available for streams."""
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request(
            "prompt_logprobs", "prompt_logprobs and stream exclude each other; send one of them"
        )
    return request.prompt_logprobs


def check_stream_options(request: schema.Generation) -> None:
    """Raise BAD_REQUEST for options that contradict the request."""
    options = request.stream_options
    if options is None:
        return
    for name in ("include_usage", "continuous_usage_stats"):
        if getattr(options, name) and not request.stream:
            param = f"stream_options.{name}"
            raise bad_request(param, f"{param} is only allowed when stream is true")
    if options.continuous_usage_stats and not options.include_usage:
        param = "stream_options.continuous_usage_stats"
        raise bad_request(param, f"{param} needs stream_options.include_usage")


_TIERS = {"priority": -1, "flex": 1}


def caller_for(request: Request, body: schema.Generation, arrival: float) -> Caller:
    """Who sends a body, with the deadline, salt and priority that it asks for.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    request.state.sent_as.setdefault("adapter", "lora_path" if body.lora_path else "lora")
    return caller_of(
        request,
        body.timeout,
        arrival,
        cache_salt=body.cache_salt,
        priority=priority_of(body),
        user=body.user or body.safety_identifier,
    )


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
