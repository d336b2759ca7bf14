"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic, wall
from tidemill.base.errors import bad_request
from tidemill.base.ids import new_id
from tidemill.contract.resolve import check_input, check_prompt
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.openai import schema
from tidemill.server.dialects.openai.assemble import (
    CompletionFormat,
    EchoedPrompt,
    Envelope,
    running_usage,
)
from tidemill.server.dialects.openai.chat import effective_of
from tidemill.server.dialects.openai.prompting import (
    DECODED_AT_ONCE,
    check_ids,
    decode_ids,
    encode_prompt,
)
from tidemill.server.dialects.openai.resolve import (
    check_stream_options,
    priority_of,
    resolve_all,
    sampling_of,
    whole_prompt_logprobs,
)
from tidemill.server.host.generation import Generation
from tidemill.server.transport.slices import slices
from tidemill.server.transport.stream import Answer
from tidemill.text.answering import text_rules
from tidemill.text.detokenizer import Detokenizer
from tidemill.text.tokenizer import Tokenizer

Source = str | list[int]


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


async def encode_source(
    context: ServerContext, source: Source, param: str, *, output_tokens: int = 1
) -> tuple[int, ...]:
    """Token ids of one prompt, checked.

    Args:
        param: names it in errors.
        output_tokens: tokens of output that the context must hold after the prompt.
    """
    if not source:
        # The model's start token would suffice, but an empty string is probably an error.
        raise bad_request(param, f"{param} is empty")
    if isinstance(source, str):
        ids = await encode_prompt(context, source, param=param, add_special=True)
        _check_length(context, len(ids), param, output_tokens)
        await asyncio.sleep(0)  # short texts are encoded without yielding, and there may be many
        return ids
    # Before the ids are validated: there may be millions.
    _check_length(context, len(source), param, output_tokens)
    await check_ids(source, context.info.vocab_size, param)
    return tuple(source)


def _check_length(context: ServerContext, count: int, param: str, output_tokens: int) -> None:
    if output_tokens:
        check_prompt(count, context.info.max_model_len, param=param)
    else:
        check_input(count, context.max_input, param=param)


async def echo_prompt(
    tokenizer: Tokenizer, source: Source, token_ids: Sequence[int], *, pieces: bool
) -> EchoedPrompt:
    """A prompt as `echo` repeats it: a string as it was sent, token ids decoded.

    Args:
        pieces: also locate each token, for logprobs. Start tokens that encoding added have no
            characters in the string.
    """
    text = source if isinstance(source, str) else await decode_ids(tokenizer, token_ids)
    if not pieces:
        return EchoedPrompt(text, (), ())
    # Special tokens written out in a string are part of its text.
    spelled = isinstance(source, str)
    added = _count_start_tokens(tokenizer, token_ids) if spelled else 0
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=not spelled, at_start=True)
    offsets, length = [0] * added, 0
    async for tokens in slices(token_ids[added:], DECODED_AT_ONCE):
        for token in tokens:
            offsets.append(min(length, len(text)))
            length += len(detokenizer.push((token,)))
    return EchoedPrompt(text, tuple(tokenizer.token_bytes(t) for t in token_ids), tuple(offsets))


def _count_start_tokens(tokenizer: Tokenizer, token_ids: Sequence[int]) -> int:
    lengths = range(1, min(8, len(token_ids)) + 1)
    return next((k for k in lengths if tokenizer.starts_with_special(token_ids[:k])), 0)


def _prompt_logprobs(body: schema.CompletionRequest) -> int | None:
    """Alternatives per token of the prompt: as requested, and as `echo` shows them."""
    requested = whole_prompt_logprobs(body)
    echoed = body.logprobs if body.echo else None
    return max((n for n in (requested, echoed) if n is not None), default=None)


async def completions(context: ServerContext, request: Request) -> Response:
    """Continue one prompt or several, whole or streamed."""
    arrival = monotonic()
    body = await read_model(schema.CompletionRequest, request, context.limits)
    context.check_model(body.model)
    context.check_generates()
    caller = caller_of(
        request,
        body.timeout,
        arrival,
        cache_salt=body.cache_salt,
        priority=priority_of(body),
    )
    include_usage = check_stream_options(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_request("best_of", "this server does not support best_of unless it equals n")
    scored = body.max_tokens == 0  # only the prompt is scored; a step samples one token in any case
    params = sampling_of(
        body,
        context,
        max_tokens=1 if scored else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=_prompt_logprobs(body),
    )
    params.validate(context.info.vocab_size)
    rules = text_rules(asdict(body), context.chat.prepare)
    sources = split_prompts(body.prompt, context.limits.max_prompts)
    context.admission.check_choices(len(sources) * params.n)
    names = ["prompt"] if len(sources) == 1 else [f"prompt[{i}]" for i in range(len(sources))]
    prompts = []
    for source, name in zip(sources, names, strict=True):
        prompts.append(await encode_source(context, source, name))
    sampling = resolve_all(
        params, prompts, context, prompt_param="prompt", max_tokens_param="max_tokens"
    )
    answer_id = new_id("cmpl")
    generation = Generation(
        context,
        answer_id,
        prompts,
        sampling,
        rules=rules,
        at_start=False,
        arrival=arrival,
        caller=caller,
        counted=not scored,
        streamed=bool(body.stream),
    )
    envelope = Envelope(
        answer_id,
        int(wall()),
        context.info.model,
        context.fingerprint,
        include_usage,
        effective_of(context, body),
        running_usage(body, generation),
    )
    with_logprobs = params.logprobs is not None
    echo = [
        await echo_prompt(context.tokenizer, source, prompt, pieces=with_logprobs)
        for source, prompt in zip(sources, prompts, strict=True)
        if body.echo
    ]
    form = CompletionFormat(
        envelope,
        context.tokenizer,
        generation.num_choices,
        logprobs=with_logprobs,
        echo=echo,
        prompt_logprobs=body.prompt_logprobs is not None,
        scored=scored,
        per_prompt=params.n,
    )
    return Answer(generation, form, stream=bool(body.stream), request_id=request.state.request_id)
