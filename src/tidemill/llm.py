"""The offline Python API: a model in this process, without a server.

    from tidemill import LLM, SamplingParams
    llm = LLM()
    question = {"role": "user", "content": "What is the capital of France?"}
    print(llm.chat([question], SamplingParams(max_tokens=32))[0].text)

The engine is the same as the server's: equal tokens, parameters and seed give equal answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError, bad_request, config_error
from tidemill.base.ids import new_id
from tidemill.contract.config import EngineConfig
from tidemill.contract.program import OutputProgram
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason
from tidemill.contract.resolve import resolve
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import EngineInfo, EngineStats
from tidemill.engine.offline import InprocEngine
from tidemill.grammar.schema import prepared
from tidemill.loading.kind import check_model
from tidemill.loading.locate import locate
from tidemill.offline.opened_text import OpenedText
from tidemill.offline.outputs import Completion, RequestOutput, Running, ToolCall
from tidemill.offline.vectors import run_vectors
from tidemill.text.answer import NOTHING, AnswerDelta
from tidemill.text.answering import (
    ANSWER_FIELDS,
    PLAIN,
    STOP_PARAMS,
    AnswerRules,
    ChatSide,
    read_output_options,
    rules_of,
    text_rules,
)
from tidemill.text.constraints import FIELDS as CONSTRAINT_FIELDS
from tidemill.text.pooled import Float32, finish_embedding, finish_score, similarity
from tidemill.text.prompt import PromptOptions, render_prompt
from tidemill.text.tools import tool_use
from tidemill.text.vectors import (
    Input,
    check_dimensions,
    embedding_pooling,
    pair_input,
    prompted,
    score_pooling,
    side_prompts,
)

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None


# One prompt of a batch: its token ids and the rules of its answer.
_PreparedPrompt = tuple[tuple[int, ...], AnswerRules]

_PROMPT_FIELDS = ("add_generation_prompt", "continue_final_message", "documents")


class LLM:
    """A model loaded into this process.

    Args:
        model: a Hugging Face folder, a GGUF file, a hub id, or a bundled model's name; None is the
            bundled model.
        progress: called with one line of text per loading step.
        **settings: fields of `EngineConfig` except ``model`` (``quantize="q8_0"``, ``threads=4``,
            ``kv_memory=2**30``, ...).

    Raises:
        TidemillError: the model or a setting is invalid; the message names the remedy.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        progress: Callable[[str], None] = lambda line: None,
        **settings: Any,
    ) -> None:
        path, name = locate(model, progress)
        check_model(path)
        settings.setdefault("served_name", name)
        unknown = sorted(set(settings) - set(EngineConfig.__struct_fields__))
        if unknown or "model" in settings:
            name = unknown[0] if unknown else "model"
            raise config_error(name, f"LLM() knows no setting {name!r}; see EngineConfig")
        config = EngineConfig(model=str(path), **settings).validate()
        self._engine = InprocEngine.open(config, progress)
        try:
            opened = OpenedText.open(path)
            self.tokenizer = opened.tokenizer
            self.template = opened.template
            self.defaults = opened.defaults
            self.vectors = self._engine.info.vectors
            self.chat_side = ChatSide.of(self.tokenizer, self.template, prepared)
        except BaseException:
            self._engine.close()
            raise

    @property
    def info(self) -> EngineInfo:
        """The configuration that the engine resolved at start."""
        return self._engine.info

    @property
    def stats(self) -> EngineStats:
        """The engine's statistics after its latest step."""
        return self._engine.stats

    def __repr__(self) -> str:
        info = self.info
        return f"LLM({info.model!r}, backend={info.backend!r}, max_model_len={info.max_model_len})"

    def sampling(self, **values: Any) -> SamplingParams:
        """Sampling parameters; the model's recommended values are the defaults."""
        return SamplingParams(**values).filled(self.defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        program: OutputProgram | None = None,
        progress: bool = False,
        **constraint: Any,
    ) -> list[RequestOutput]:
        """Continue one prompt or several; several run as a batch.

        Args:
            prompts: a text, a sequence of token ids, or a sequence of either.
            params: one for all prompts, or one per prompt. Unset fields take the values that the
                model's authors recommend, as over HTTP.
            program: the constraint on every output in the engine's form; excludes `constraint`.
            progress: show a progress bar on stderr.
            **constraint: one of the server's constraint fields: ``response_format``,
                ``guided_json``, ``guided_regex``, ``guided_choice``, ``guided_grammar``,
                ``structured_outputs``, ``json_schema``, ``grammar``.

        Raises:
            TidemillError: BAD_REQUEST naming the field, or the engine's error.
        """
        _check_options("generate", "prompts", constraint)
        unknown = sorted(set(constraint) - set(CONSTRAINT_FIELDS))
        if unknown:
            raise bad_request(unknown[0], f"generate() knows no {unknown[0]!r}")
        if program is not None and constraint:
            name = next(iter(constraint))
            raise bad_request(name, f"program and {name} exclude each other; give one of them")
        batch: list[_PreparedPrompt] = []
        token_ids = [self._encode(p) for p in _as_list(prompts)]
        for ids, sampling in zip(token_ids, self._samplings(token_ids, params), strict=True):
            rules = text_rules({**constraint, **_stop_params(sampling)}, prepared)
            if program is not None:
                rules = AnswerRules(program=program)
            batch.append((ids, rules))
        return self._complete(batch, params, at_start=False, progress=progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        progress: bool = False,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Args:
            messages: a conversation (dicts with role and content) or a list of conversations.
            params, progress: see `generate`.
            tools: the functions that the model may call, in OpenAI's format.
            **options: the server's fields of the same names: ``tool_choice``,
                ``parallel_tool_calls``, ``response_format`` and the other constraints,
                ``enable_thinking``, ``reasoning_effort``, ``verbosity``, ``thinking_token_budget``,
                ``add_generation_prompt``, ``continue_final_message``, ``documents``; any other
                name is a variable of the chat template.
        """
        _check_options("chat", "messages", options)
        first = messages[0] if isinstance(messages, list | tuple) and messages else None
        conversations: Sequence[Any] = messages if isinstance(first, list | tuple) else [messages]
        samplings = self._samplings(conversations, params)
        batch = [
            self._prepare_chat(c, sampling, {"tools": tools, **options})
            for c, sampling in zip(conversations, samplings, strict=True)
        ]
        at_start = not options.get("continue_final_message")
        return self._complete(batch, params, at_start=at_start, progress=progress)

    def chat_tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> tuple[int, ...]:
        """Token ids of a conversation, rendered with the model's chat template."""
        kwargs = {k: v for k, v in template_kwargs.items() if k not in _PROMPT_FIELDS}
        options = _prompt_options(template_kwargs, kwargs)
        text = render_prompt(self.template, self.chat_side, messages, options, tool_use(tools))
        return tuple(self.tokenizer.encode(text, add_special=False))

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """Generate one answer and yield its text incrementally; closing the iterator cancels it.

        Args:
            prompt: a text, token ids, or a conversation.
            params: see `generate`; `n` must be 1.
            **options: for a conversation, as in `chat`. Only `stream_parts` yields
                reasoning and tool calls.
        """
        parts = self.stream_parts(prompt, params, **options)
        return (part.content for part in parts if part.content)

    def stream_parts(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Iterator[AnswerDelta]:
        """`stream` with all parts of an answer: reasoning, text, tool calls, and errors of
        malformed tool calls."""
        _check_options("stream", "prompt", options)
        conversation = not isinstance(prompt, str) and bool(prompt)
        if conversation and isinstance(prompt[0], Mapping):
            [sampling] = self._samplings([prompt], params)
            item = self._prepare_chat(prompt, sampling, options)
            at_start = not options.get("continue_final_message")
        else:
            if options:
                name = next(iter(options))
                raise bad_request(name, f"{name} is for conversations")
            item, at_start = (self._encode(prompt), PLAIN), False  # type: ignore[arg-type]
        [request] = self._requests([item], params)
        if request.sampling.n != 1:
            raise bad_request("n", "stream gives one answer; use generate for several")
        return self._parts(request, item[1], at_start=at_start)

    def embed(
        self,
        inputs: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> list[Float32]:
        """Embed one input or several.

        Args:
            inputs: a text, a sequence of token ids, or a sequence of either.
            dimensions: truncate each vector to this size; it is then normalized if the model's
                files say so.
            prompt_name: the model's own prompt to prepend to each text.

        Returns:
            float32 [size] each, in order.

        Raises:
            TidemillError: BAD_REQUEST naming the field, or the engine's error.
        """
        data = self.vectors
        pooling = embedding_pooling(data)
        check_dimensions(dimensions, self.info.hidden_size)
        items = [
            prompted(p, data, prompt_name) if isinstance(p, str) and p else p
            for p in _as_list(inputs)
        ]
        found = run_vectors(self._engine, [Input(self._encode(p)) for p in items], pooling)
        return [finish_embedding(pooled, data, dimensions) for pooled in found]

    def score(self, first: str, seconds: str | Sequence[str]) -> list[float]:
        """Score each of the second texts against the first: a cross-encoder's score, or the
        cosine similarity of the embeddings.

        Raises:
            TidemillError: BAD_REQUEST naming the field, or the engine's error.
        """
        data, texts = self.vectors, [seconds] if isinstance(seconds, str) else list(seconds)
        if data.head == "score":
            inputs = [pair_input(self.tokenizer, self.template, data, first, t) for t in texts]
            found = run_vectors(self._engine, inputs, score_pooling(data))
            return [finish_score(pooled, data) for pooled in found]
        query, document = side_prompts(data)
        sides = [prompted(first, data, query), *(prompted(t, data, document) for t in texts)]
        inputs = [Input(self._encode(text)) for text in sides]
        found = run_vectors(self._engine, inputs, embedding_pooling(data))
        return [similarity(found[0], pooled) for pooled in found[1:]]

    def close(self) -> None:
        """Stop the engine and free the model."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode(prompt)) if prompt else ()
        ids = _token_ids(prompt)
        vocab = self.info.vocab_size
        wrong = next((t for t in ids if not 0 <= t < vocab), None)
        if wrong is not None:
            raise bad_request("prompt", f"{wrong} is no token id of this model (0 to {vocab - 1})")
        return ids

    def _prepare_chat(
        self, messages: Any, sampling: SamplingParams, options: Mapping[str, Any]
    ) -> _PreparedPrompt:
        """Render and tokenize a conversation, with the rules of its answer."""
        fields = {k: v for k, v in options.items() if k in ANSWER_FIELDS or k in _PROMPT_FIELDS}
        kwargs = {k: v for k, v in options.items() if k not in fields}
        fields["chat_template_kwargs"] = kwargs
        output_options = read_output_options(self.chat_side, {**fields, **_stop_params(sampling)})
        prompt = _prompt_options(options, kwargs, output_options.variables)
        text = render_prompt(self.template, self.chat_side, messages, prompt, output_options.use)
        ids = tuple(self.tokenizer.encode(text, add_special=False))
        continued = bool(prompt.continue_final_message)
        return ids, rules_of(self.chat_side, output_options, text, continued=continued)

    def _samplings(self, prompts: Sequence[Any], params: Params) -> list[SamplingParams]:
        """One `SamplingParams` per prompt."""
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if isinstance(params, str | Mapping) or not all(
            isinstance(p, SamplingParams) for p in params
        ):
            raise bad_request("params", "params must be SamplingParams, or one for each prompt")
        if len(params) != len(prompts):
            raise bad_request(
                "params", f"{len(params)} sampling parameters for {len(prompts)} prompts"
            )
        return list(params)

    def _requests(self, batch: Sequence[_PreparedPrompt], params: Params) -> list[EngineRequest]:
        info = self.info
        if not info.generates:
            does = "score" if self.vectors.head == "score" else "embed"
            raise bad_request(
                "model",
                "this model generates no text: it has no output layer; "
                f"LLM.{does}() and `tidemill serve` are for it",
            )
        return [
            EngineRequest(
                request_id=new_id("llm"),
                prompt_token_ids=prompt,
                sampling=resolve(
                    sampling,
                    prompt_tokens=len(prompt),
                    max_model_len=info.max_model_len,
                    vocab_size=info.vocab_size,
                    defaults=self.defaults,
                ),
                program=rules.program,
                arrival=monotonic(),
            )
            for (prompt, rules), sampling in zip(batch, self._samplings(batch, params), strict=True)
        ]

    def _parts(
        self, request: EngineRequest, rules: AnswerRules, *, at_start: bool
    ) -> Iterator[AnswerDelta]:
        running = Running(request, self.tokenizer, rules, at_start=at_start)
        for output in self._engine.run([request]):
            found = self._take(running, output)
            if found != NOTHING:
                yield found

    def _complete(
        self, batch: Sequence[_PreparedPrompt], params: Params, *, at_start: bool, progress: bool
    ) -> list[RequestOutput]:
        requests = self._requests(batch, params)
        running = {
            request.request_id: Running(request, self.tokenizer, rules, at_start=at_start)
            for request, (_, rules) in zip(requests, batch, strict=True)
        }
        with _Bar(sum(r.sampling.n for r in requests), progress) as bar:
            for output in self._engine.run(requests):
                self._take(running[output.request_id], output)
                if output.finish_reason is not None:
                    bar.advance()
        return [running[r.request_id].output for r in requests]

    def _take(self, running: Running, output: ChoiceOutput) -> AnswerDelta:
        found, stop = running.take(output)
        if stop:
            self._engine.cancel(output.request_id, output.choice, FinishReason.STOP)
        return found


# Other libraries' names of sampling parameters -> ours.
_OTHER_NAMES = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "num_return_sequences": "n",
    "random_seed": "seed",
    "top_logprobs": "logprobs",
}


def _check_options(method: str, first: str, options: Mapping[str, Any]) -> None:
    """Reject sampling parameters passed as options; the error names `SamplingParams`."""
    for option in options:
        name = _OTHER_NAMES.get(option, option)
        if name in SamplingParams.__struct_fields__:
            raise bad_request(
                option,
                f"{method}() takes {option} within its second argument: "
                f"{method}({first}, SamplingParams({name}=...))",
            )


def _stop_params(sampling: SamplingParams) -> dict[str, Any]:
    """The stop parameters as request fields, for the checks that the server shares."""
    return {name: getattr(sampling, name) for name in STOP_PARAMS}


def _as_list(prompts: Any) -> list[Prompt]:
    """One prompt or many as many; what is in them is looked at when they are encoded."""
    if isinstance(prompts, str) or not isinstance(prompts, Iterable):
        return [prompts]
    if isinstance(prompts, bytes | Mapping | Set):
        raise _invalid_prompt(prompts)
    items = list(prompts)
    if items and isinstance(items[0], str | Iterable):
        return items
    return [items] if items else []


def _token_ids(prompt: object) -> tuple[int, ...]:
    """Token ids of a prompt that is not a string; NumPy integers are accepted."""
    if isinstance(prompt, bytes | Mapping | Set) or not isinstance(prompt, Iterable):
        raise _invalid_prompt(prompt)
    items = list(prompt)
    if any(isinstance(item, bool) or not hasattr(item, "__index__") for item in items):
        raise _invalid_prompt(items)
    return tuple(index(item) for item in items)


def _invalid_prompt(value: object) -> TidemillError:
    return bad_request(
        "prompt", f"a prompt is a text or a sequence of token ids, got {repr(value)[:80]}"
    )


class _Bar:
    """An optional progress bar on stderr."""

    def __init__(self, total: int, wanted: bool) -> None:
        self._bar: Any = None
        if wanted:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("generating", total=total)

    def __enter__(self) -> _Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """Count one finished choice."""
        if self._bar is not None:
            self._bar.advance(self._task)


def _prompt_options(
    given: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    variables: Mapping[str, Any] | None = None,
) -> PromptOptions:
    """Read the prompt options of a call."""
    for name in _PROMPT_FIELDS[:2]:
        if not isinstance(given.get(name), bool | None):
            raise bad_request(name, f"{name} must be True or False, got {given[name]!r}")
    own = {name: given.get(name) for name in _PROMPT_FIELDS}
    return PromptOptions(**own, kwargs=kwargs, variables=variables)


__all__ = [
    "LLM",
    "Completion",
    "RequestOutput",
    "SamplingParams",
    "TidemillError",
    "ToolCall",
]
