"""From a request to what the engine takes: rendered, tokenized, checked and resolved.

Used by every dialect and by `LLM`; see `pace` for how one function serves both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tidemill.base.errors import bad_request, unsupported
from tidemill.contract.program import FreeText, OutputProgram, StopStrings
from tidemill.contract.request import AdapterUse, EngineRequest, Pooling
from tidemill.contract.resolve import ContextLengthError, check_prompt, resolve
from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import Caller
from tidemill.generation.encoding import encode_source, encode_text
from tidemill.generation.pace import INLINE, Pace
from tidemill.generation.request import (
    FITTING,
    NO_TEXTS,
    GenerateRequest,
    Model,
    Source,
)
from tidemill.text.answering import (
    AnswerRules,
    ChatSide,
    OutputOptions,
    output_options_of,
    rules_of,
    text_rules,
)
from tidemill.text.prompt import render_prompt
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.template import ChatTemplate
from tidemill.text.tools import NO_TOOLS, ToolUse

_TOKEN_CHARS = 8  # of text that tokens may take, on average
_NO_OPTIONS = OutputOptions()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as the engine takes it.

    Attributes:
        request: what it was made from.
        prompts: token ids of each prompt.
        sampling: resolved parameters of each prompt; `n` is the same for all.
        rules: constraints on the outputs, and how they are parsed.
        options: the tools, thinking and constraint that the rules were made from.
        dropped: indices of the messages that were left out (`GenerateRequest.drop_oldest`).
        cut: names of the prompts of which only the end is used (`GenerateRequest.keep_last`).
        prediction: token ids of `GenerateRequest.prediction`, at most as many as the context holds.
    """

    request: GenerateRequest
    prompts: Sequence[tuple[int, ...]]
    sampling: Sequence[SamplingParams]
    rules: AnswerRules
    options: OutputOptions = _NO_OPTIONS
    dropped: tuple[int, ...] = ()
    cut: tuple[str, ...] = ()
    prediction: tuple[int, ...] = ()

    @property
    def at_start(self) -> bool:
        """Outputs begin a new text (see `text.output.OutputText`)."""
        return self.request.messages is not None and not self.request.continued

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))

    def _program(self, sampling: SamplingParams) -> OutputProgram:
        rules = self.rules
        # A parser decides what of the tokens is text: then stop strings are found in the outputs.
        if sampling.beam_search and sampling.stop and rules.parser is None:
            return _ended_by_stops(rules.program, sampling)
        return rules.program

    def engine_request(
        self,
        prompt: int,
        request_id: str,
        *,
        max_queue_time: float | None = None,
        explain: bool = False,
    ) -> EngineRequest:
        """The request to the engine for one of the prompts."""
        request, sampling = self.request, self.sampling[prompt]
        if sampling.chosen:  # by the mean logprob
            sampling = sampling.with_values(
                {"n": sampling.best_of, "logprobs": sampling.logprobs or 0}
            )
        return engine_request(
            request_id,
            self.prompts[prompt],
            sampling,
            request.caller,
            request.arrival,
            place=prompt,
            max_queue_time=max_queue_time,
            program=self._program(sampling),
            adapters=request.adapters,
            speculation=request.speculation,
            prediction=self.prediction,
            explain=explain,
        )


def _ended_by_stops(program: OutputProgram, sampling: SamplingParams) -> OutputProgram:
    """The program of beams, which end in the engine at stop strings."""
    special = not sampling.skip_special_tokens
    stops = StopStrings(sampling.stop, sampling.min_tokens, special)
    return OutputProgram(program.phases or (FreeText(),), stops)


def engine_request(
    request_id: str,
    token_ids: tuple[int, ...],
    sampling: SamplingParams,
    caller: Caller,
    arrival: float,
    *,
    place: int = 0,
    max_queue_time: float | None = None,
    program: OutputProgram | None = None,
    adapters: tuple[AdapterUse, ...] = (),
    pooling: Pooling | None = None,
    speculation: str | None = None,
    prediction: tuple[int, ...] = (),
    explain: bool = False,
) -> EngineRequest:
    """A request to the engine.

    Args:
        request_id: unique within the engine's client.
        token_ids, sampling: one prompt or input, and its resolved parameters.
        caller: who asks.
        arrival: seconds of `base.clock.monotonic`.
        place: prompts or inputs of the same request before this one.
        max_queue_time: seconds from `arrival` within which it must start; None: no limit.
        program, adapters, pooling, speculation, prediction, explain: see `EngineRequest`.
    """
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=token_ids,
        sampling=sampling,
        program=OutputProgram() if program is None else program,
        priority=caller.priority,
        arrival=arrival,
        place=place,
        deadline=caller.deadline,
        cache_salt=caller.cache_salt,
        adapters=adapters,
        tenant=caller.client,
        weight=caller.weight,
        start_by=None if max_queue_time is None or caller.background else arrival + max_queue_time,
        pooling=pooling,
        background=caller.background,
        speculation=speculation,
        prediction=prediction,
        explain=explain,
    )


async def prepare(model: Model, request: GenerateRequest, pace: Pace = INLINE) -> Prepared:
    """Render, tokenize, check and resolve a request.

    Raises:
        TidemillError: kind BAD_REQUEST or UNSUPPORTED, naming the field as the dialect calls it.
    """
    check_generates(model)
    request = model.preset.applied(request)
    request = await _with_ids(model, request, pace)
    sampling = request.sampling
    size = context_of(model, request)
    dropped: tuple[int, ...] = ()
    cut: tuple[str, ...] = ()
    if request.messages is not None:
        fit = _conversation if not request.drop_oldest else _fitting
        found = await fit(model, request, pace)
        prompts, dropped, options = [found.ids], found.dropped, found.options
        cut = (request.names.prompt,) if found.cut else ()
        rules = rules_of(model.chat, options, found.text, continued=request.continued)
    else:
        options = _NO_OPTIONS
        rules = text_rules(request.output.constraint, sampling, model.chat.prepare)
        if request.program is not None:
            rules = AnswerRules(program=request.program)
        prompts, request, cut = await _sources(model, request, pace)
        sampling = request.sampling
    if request.texts.no_ends and not rules.program.free:
        raise bad_request(
            "ban_eos_token",
            "ban_eos_token excludes response_format, guided_* and tools that are enforced: their "
            "outputs end with an end token",
        )
    names = request.names
    resolved = [
        # A seed in the request applies to every prompt, as in separate requests. Drawn seeds
        # differ, so that equal prompts of one request do not get equal answers.
        resolve(
            _bounded(model, sampling, len(prompt), size, request),
            prompt_tokens=len(prompt),
            max_model_len=size,
            vocab_size=model.info.vocab_size,
            defaults=model.defaults,
            prompt_param=name,
            max_tokens_param=names.max_tokens,
            clip=request.clip_max_tokens,
        )
        for prompt, name in zip(prompts, names.numbered(len(prompts)), strict=True)
    ]
    prediction = await _prediction(model, request.prediction, pace) if request.prediction else ()
    return Prepared(request, prompts, resolved, rules, options, dropped, cut, prediction)


async def _prediction(model: Model, text: str, pace: Pace) -> tuple[int, ...]:
    """Token ids of the beginning of an expected output that fits into the context."""
    limit = model.info.max_model_len
    text = text[: _TOKEN_CHARS * limit]
    return tuple(await pace.short(len(text), model.tokenizer.encode, text, add_special=False))[
        :limit
    ]


async def _with_ids(model: Model, request: GenerateRequest, pace: Pace) -> GenerateRequest:
    """The request with checked sampling parameters, in which ids stand for texts."""
    vocab_size = model.info.vocab_size
    sampling = request.sampling
    breakers = sampling.dry_multiplier > 0.0 and sampling.dry_breaker_ids is None
    if request.texts == NO_TEXTS and not breakers:
        return replace(request, sampling=sampling.validate(vocab_size))
    from tidemill.generation.wording import with_breakers, with_texts  # few requests need it

    sampling = await with_texts(model, sampling, request.texts, pace)
    if breakers:
        sampling = await with_breakers(model, sampling, pace)
    return replace(request, sampling=sampling)


async def _sources(
    model: Model, request: GenerateRequest, pace: Pace
) -> tuple[list[tuple[int, ...]], GenerateRequest, tuple[str, ...]]:
    """Token ids of the prompts that are continued, the request with what follows from them, and
    the names of prompts that were cut."""
    if request.gap is not None:
        from tidemill.generation.filling import gap_prompts  # few requests need it

        return *await gap_prompts(model, request, request.gap, pace), ()
    names = request.names.numbered(request.num_prompts)
    special, prompts, cut = request.add_special is not False, [], []
    for source, name in zip(request.prompts, names, strict=True):
        if request.keep_last is None:
            ids = await encode_source(model, source, name, pace, add_special=special)
        else:
            ids, shortened = await _end_of(model, source, name, request, pace, add_special=special)
            cut += [name] if shortened else []
            check_prompt(len(ids), model.info.max_model_len, param=name)
        prompts.append(ids)
    return prompts, request, tuple(cut)


async def _end_of(
    model: Model,
    source: Source,
    name: str,
    request: GenerateRequest,
    pace: Pace,
    *,
    add_special: bool,
) -> tuple[tuple[int, ...], bool]:
    """The last tokens of a prompt (`GenerateRequest.keep_last`), and whether some were left out."""
    from tidemill.generation.cutting import cut_source  # few requests need it

    most = request.keep_last
    assert most is not None
    if most == FITTING:
        size = context_of(model, request)
        most = max(1, size - (request.sampling.max_tokens or max(1, size // 8)))
    # So few tokens that the tokenizer's own would leave no place for the text's.
    add_special = add_special and most > sum(map(len, model.tokenizer.affixes))
    return await cut_source(model, source, name, most, request.cut, pace, add_special=add_special)


def context_of(model: Model, request: GenerateRequest) -> int:
    """Tokens that prompt and output of a request may have together.

    Raises:
        TidemillError: kind BAD_REQUEST, the request asks for more than the model takes.
    """
    return bounded_context(model, request.context, request.names.context)


def bounded_context(model: Model, asked: int | None, name: str) -> int:
    """Tokens that are read at most: as many as were asked for, or as the model takes.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field `name`: it is more than the model takes.
    """
    most = model.info.max_model_len
    if asked is None:
        return most
    if not 1 <= asked <= most:
        raise bad_request(
            name,
            f"{name} must be between 1 and {most}, got {asked}: the model is served with a context "
            f"of {most} tokens; leave {name} out, or start the server with a longer context "
            "(--max-model-len)",
        )
    return asked


def _bounded(
    model: Model, sampling: SamplingParams, prompt: int, size: int, request: GenerateRequest
) -> SamplingParams:
    """The parameters with a `max_tokens` that fits, where the context may end the output, or the
    cache that of a beam search."""
    most, own = sampling.max_tokens, request.caller.max_tokens
    if own is not None and not request.scored:
        check_own(sampling, own, request)
    if most is None and sampling.beam_search:
        from tidemill.contract.beams import longest_beam  # few requests need it

        info = model.info
        shared = prompt if info.recurrent_sequences is None else 0
        longest = longest_beam(info.block_size, info.num_blocks, sampling.beam_width, shared)
        longest = max(1, min(size, longest) - prompt)
        return sampling.with_values({"max_tokens": min(longest, own or longest)})
    if own is not None and (most is None or most > own) and size > prompt:
        return sampling.with_values({"max_tokens": min(own, size - prompt)})
    if not request.ends_with_context or most is None or most <= size - prompt:
        return sampling
    return sampling.with_values({"max_tokens": None})


def check_own(sampling: SamplingParams, own: int, request: GenerateRequest) -> None:
    """Check that a request asks for no more than its caller may have.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    most, name = sampling.max_tokens, request.names.max_tokens
    bounded = request.clip_max_tokens or request.ends_with_context  # then it is an upper bound
    if most is not None and most > own and not bounded:
        raise bad_request(
            name, f"{name} is {most}, and this API key may have {own}; ask for at most {own}"
        )
    if sampling.min_tokens > own:
        raise bad_request(
            "min_tokens", f"min_tokens is {sampling.min_tokens}, and this API key may have {own}"
        )


class _Rendered(NamedTuple):
    """A conversation's text, the options that it was rendered with, its token ids, the messages
    that are not in it, and whether tokens of its beginning are not."""

    text: str
    options: OutputOptions
    ids: tuple[int, ...]
    dropped: tuple[int, ...]
    cut: bool


async def _conversation(
    model: Model, request: GenerateRequest, pace: Pace, dropped: Sequence[int] = ()
) -> _Rendered:
    """A conversation without the messages that are dropped."""
    if dropped:
        assert request.messages is not None
        kept = [m for i, m in enumerate(request.messages) if i not in set(dropped)]
        request = replace(request, messages=kept)
    # A template may take up to its time bound.
    text, options = await pace.call(rendered, model.template, model.chat, request)
    name, special, cut = request.names.prompt, bool(request.add_special), False
    if request.keep_last is None:
        ids = await encode_text(model, text, name, pace, add_special=special)
    else:
        ids, cut = await _end_of(model, text, name, request, pace, add_special=special)
    return _Rendered(text, options, ids, tuple(dropped), cut)


async def _fitting(model: Model, request: GenerateRequest, pace: Pace) -> _Rendered:
    """The conversation with as few of its oldest messages left out as the context demands.

    Where some are, an output without a bound of its own has room for an eighth of the context.
    """
    from tidemill.generation.dropping import cuts_of  # few requests need it

    assert request.messages is not None
    size, asked = context_of(model, request), request.sampling.max_tokens
    if request.ends_with_context:
        asked = None if asked is None else min(asked, max(1, size // 8))

    async def attempt(dropped: Sequence[int], room: int) -> _Rendered | ContextLengthError:
        try:
            found = await _conversation(model, request, pace, dropped)
        except ContextLengthError as error:
            return error
        if len(found.ids) + room <= size:
            return found
        message = f"the prompt has {len(found.ids)} tokens, and the context holds {size}"
        return ContextLengthError(request.names.prompt, message)

    whole = await attempt((), asked or 1)
    if not isinstance(whole, ContextLengthError):
        return whole
    cuts = cuts_of(request.messages)
    best: _Rendered | None = None
    low, high = 0, len(cuts)
    while low < high:
        middle = (low + high) // 2
        found = await attempt(cuts[middle], asked or max(1, size // 8))
        if isinstance(found, ContextLengthError):
            low = middle + 1
        else:
            best, high = found, middle
    if best is None:
        raise ContextLengthError(
            request.names.prompt,
            f"{whole.message}; even without everything that may be left out it does not fit",
        )
    return best


def rendered(
    template: ChatTemplate, chat: ChatSide, request: GenerateRequest
) -> tuple[str, OutputOptions]:
    """The prompt of a conversation as text, and the options that it was rendered with.

    Raises:
        TidemillError: kind BAD_REQUEST naming the field.
    """
    assert request.messages is not None
    options = output_options_of(
        chat, request.output, sampling=request.sampling, prompt_options=request.prompt_options
    )
    prompt_options = replace(request.prompt_options, variables=options.variables)
    return render_prompt(template, chat, request.messages, prompt_options, options.use), options


async def render_messages(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    prompt_options: PromptOptions,
    use: ToolUse = NO_TOOLS,
    pace: Pace = INLINE,
    *,
    param: str = "messages",
) -> tuple[str, tuple[int, ...]]:
    """Render and tokenize messages; see `text.prompt.render_prompt`."""
    text = await pace.call(render_prompt, model.template, model.chat, messages, prompt_options, use)
    return text, await encode_text(model, text, param, pace, add_special=False)


def check_generates(model: Model) -> None:
    """Raise UNSUPPORTED unless the model generates text."""
    info = model.info
    if not info.generates:
        scores = info.vectors.head == "score"
        does = (
            "/v1/rerank, /v1/score and LLM.score()" if scores else "/v1/embeddings and LLM.embed()"
        )
        raise unsupported(
            "model",
            f"the model {info.model!r} generates no text: it has no output layer; {does} are "
            "for it",
        )
