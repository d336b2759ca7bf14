"""The offline Python API: a model in this process, without a server.

    from tidemill import LLM, SamplingParams
    llm = LLM()
    question = {"role": "user", "content": "What is the capital of France?"}
    print(llm.chat([question], SamplingParams(max_tokens=32))[0].text)

The engine is the same as the server's: equal tokens, parameters and seed give equal answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError, bad_request, config_error
from tidemill.base.ids import new_id
from tidemill.contract.config import EngineConfig
from tidemill.contract.program import OutputProgram
from tidemill.contract.request import AdapterUse, ChoiceOutput, FinishReason, exception_of
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import AdapterInfo, EngineInfo, EngineStats
from tidemill.engine.offline import InprocEngine
from tidemill.generation.choices import ChoiceDelta
from tidemill.generation.named import INPUT_FIELDS, PROMPT_FIELDS, input_members, prompt_options_of
from tidemill.generation.pace import run_inline
from tidemill.generation.prepare import Prepared, prepare, render_messages
from tidemill.generation.preset import Preset
from tidemill.generation.request import EmbedRequest, GenerateRequest, Names, ScoreRequest
from tidemill.generation.vectors import (
    PreparedInputs,
    embedding_of,
    prepare_embedding,
    prepare_scores,
    scores_of,
)
from tidemill.grammar.schema import prepared as prepared_schema
from tidemill.library.locate import Located, locate
from tidemill.loading.kind import check_model
from tidemill.offline.adapters import Asked, OfflineAdapters
from tidemill.offline.opened_text import OpenedText
from tidemill.offline.outputs import Completion, RequestOutput, Running, ToolCall
from tidemill.text.answer import NOTHING, AnswerDelta
from tidemill.text.answering import ANSWER_FIELDS, ChatSide, OutputRequest
from tidemill.text.constraints import FIELDS as CONSTRAINT_FIELDS
from tidemill.text.pooled import Float32
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.tools import tool_use

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model loaded into this process.

    Args:
        model: a name of the library (with all that it was created with), a Hugging Face folder, a
            GGUF file, a hub id, or a bundled model's name; None is the bundled model.
        progress: called with one line of text per loading step.
        adapters: name -> path of adapters to load (see `load_adapter`).
        **settings: fields of `EngineConfig` except ``model`` (``quantize="q8_0"``, ``threads=4``,
            ``kv_memory=2**30``, ...).

    Raises:
        TidemillError: the model or a setting is invalid; the message names the remedy.
    """

    def __init__(
        self,
        model: str | Path | Located | None = None,
        *,
        progress: Callable[[str], None] = lambda line: None,
        adapters: Mapping[str, str | Path] | None = None,
        **settings: Any,
    ) -> None:
        found = model if isinstance(model, Located) else locate(model, progress)
        path, definition = found.path, found.definition
        check_model(path)
        settings.setdefault("served_name", found.name)
        for setting in ("quantize", "max_model_len"):
            if (value := getattr(definition, setting)) is not None:
                settings.setdefault(setting, value)
        unknown = sorted(set(settings) - set(EngineConfig.__struct_fields__))
        if unknown or "model" in settings:
            name = unknown[0] if unknown else "model"
            raise config_error(name, f"LLM() knows no setting {name!r}; see EngineConfig")
        config = EngineConfig(model=str(path), **settings).validate()
        self._engine = InprocEngine.open(config, progress)
        try:
            opened = OpenedText.open(path).defined(definition)
            self.tokenizer = opened.tokenizer
            self.template = opened.template
            self.defaults = opened.defaults
            self.preset = opened.preset
            self.chat_side = ChatSide.of(self.tokenizer, self.template, prepared_schema)
            self._adapters = OfflineAdapters(self._engine, definition.adapters)
            for name, folder in (adapters or {}).items():
                self._adapters.load(name, folder)
        except BaseException:
            self._engine.close()
            raise

    def load_adapter(self, name: str, path: str | Path, *, pinned: bool = False) -> AdapterInfo:
        """Load an adapter (a PEFT folder or a GGUF file), after which requests may name it.

        An adapter of the same name is replaced: requests that run finish with the old one.

        Args:
            name: 1 to 128 letters, digits and ``. _ - + /``, the first a letter or digit.
            path: the folder or file, which stays where it is: it is read again when it has left
                the memory (`adapter_memory`).
            pinned: it never leaves the memory.

        Raises:
            TidemillError: BAD_REQUEST for the name; NOT_FOUND, MODEL_FILE or UNSUPPORTED for the
                files, naming what is wrong; RESOURCE for memory.
        """
        return self._adapters.load(name, path, pinned=pinned)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that run finish with it. Raises NOT_FOUND."""
        self._adapters.unload(name)

    @property
    def _model(self) -> _Model:
        return _Model(
            self.tokenizer, self.template, self.chat_side, self.defaults, self.preset, self.info
        )

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
        adapter: Asked | Sequence[Asked] = None,
        progress: bool = False,
        **options: Any,
    ) -> list[RequestOutput]:
        """Continue one prompt or several; several run as a batch.

        Args:
            prompts: a text, a sequence of token ids, or a sequence of either.
            params: one for all prompts, or one per prompt. Unset fields take the values that the
                model's authors recommend, as over HTTP.
            program: the constraint on every output in the engine's form; excludes the server's.
            adapter: name of a loaded adapter; several names with their scales, added up; or a list
                of one per prompt. None: the base model.
            progress: show a progress bar on stderr.
            **options: the server's fields of the same names: one constraint
                (``response_format``, ``guided_json``, ``guided_regex``, ``guided_choice``,
                ``guided_grammar``, ``structured_outputs``, ``json_schema``, ``grammar``);
                ``truncate_prompt_tokens``, ``truncation_side``, ``add_special_tokens``,
                ``bad_words``.

        Raises:
            TidemillError: BAD_REQUEST naming the field, or the engine's error.
        """
        _check_options("generate", "prompts", options)
        unknown = sorted(set(options) - {*CONSTRAINT_FIELDS, *INPUT_FIELDS})
        constraint = {k: v for k, v in options.items() if k in CONSTRAINT_FIELDS}
        if unknown:
            raise bad_request(unknown[0], f"generate() knows no {unknown[0]!r}")
        if program is not None and constraint:
            name = next(iter(constraint))
            raise bad_request(name, f"program and {name} exclude each other; give one of them")
        output, texts = OutputRequest.read(constraint), _as_list(prompts)
        members = input_members(options)
        batch = [
            self._continuation(prompt, sampling, output, program, {**members, "adapters": uses})
            for prompt, sampling, uses in zip(
                texts,
                self._samplings(texts, params),
                self._adapters.per_prompt(adapter, len(texts)),
                strict=True,
            )
        ]
        return self._complete(batch, progress=progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        adapter: Asked | Sequence[Asked] = None,
        progress: bool = False,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Args:
            messages: a conversation (dicts with role and content) or a list of conversations.
            params, adapter, progress: see `generate`.
            tools: the functions that the model may call, in OpenAI's format.
            **options: the server's fields of the same names: ``tool_choice``,
                ``parallel_tool_calls``, ``response_format`` and the other constraints,
                ``enable_thinking``, ``reasoning_effort``, ``verbosity``, ``thinking_token_budget``,
                ``add_generation_prompt``, ``continue_final_message``, ``documents``, and those of
                `generate` about the prompt; any other name is a variable of the chat template.
        """
        _check_options("chat", "messages", options)
        first = messages[0] if isinstance(messages, list | tuple) and messages else None
        conversations: Sequence[Any] = messages if isinstance(first, list | tuple) else [messages]
        samplings = self._samplings(conversations, params)
        batch = [
            self._conversation(c, sampling, {"tools": tools, **options}, uses)
            for c, sampling, uses in zip(
                conversations,
                samplings,
                self._adapters.per_prompt(adapter, len(conversations)),
                strict=True,
            )
        ]
        return self._complete(batch, progress=progress)

    def chat_tokens(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> tuple[int, ...]:
        """Token ids of a conversation, rendered with the model's chat template."""
        kwargs = {k: v for k, v in template_kwargs.items() if k not in PROMPT_FIELDS}
        options = prompt_options_of(template_kwargs, kwargs)
        rendering = render_messages(self._model, messages, options, tool_use(tools))
        return run_inline(rendering)[1]

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        adapter: Asked = None,
        **options: Any,
    ) -> Iterator[str]:
        """Generate one answer and yield its text incrementally; closing the iterator cancels it.

        Args:
            prompt: a text, token ids, or a conversation.
            params: see `generate`; `n` must be 1.
            adapter: see `generate`; one.
            **options: for a conversation, as in `chat`. Only `stream_parts` yields
                reasoning and tool calls.
        """
        parts = self.stream_parts(prompt, params, adapter=adapter, **options)
        return (part.content for part in parts if part.content)

    def stream_parts(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        adapter: Asked = None,
        **options: Any,
    ) -> Iterator[AnswerDelta]:
        """`stream` with all parts of an answer: reasoning, text, tool calls, and errors of
        malformed tool calls."""
        _check_options("stream", "prompt", options)
        [sampling] = self._samplings([prompt], params)
        conversation = not isinstance(prompt, str) and bool(prompt)
        if conversation and isinstance(prompt[0], Mapping):
            prepared = self._conversation(prompt, sampling, options, self._adapters.uses(adapter))
        else:
            if others := [name for name in options if name not in INPUT_FIELDS]:
                raise bad_request(others[0], f"{others[0]} is for conversations")
            members = {**input_members(options), "adapters": self._adapters.uses(adapter)}
            prepared = self._continuation(prompt, sampling, OutputRequest(), None, members)
        if sampling.n != 1:
            raise bad_request("n", "stream gives one answer; use generate for several")
        if sampling.chosen:
            raise bad_request("best_of", "the best answer is known at the end; use generate")
        return self._parts(prepared)

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
        request = EmbedRequest(
            inputs=[p if isinstance(p, str) else _token_ids(p) for p in _as_list(inputs)],
            dimensions=dimensions,
            prompt_name=prompt_name,
            arrival=monotonic(),
        )
        found = self._vectors(run_inline(prepare_embedding(self._model, request)))
        return [embedding_of(self._model, pooled, dimensions) for pooled in found]

    def score(self, first: str, seconds: str | Sequence[str]) -> list[float]:
        """Score each of the second texts against the first: a cross-encoder's score, or the
        cosine similarity of the embeddings.

        Raises:
            TidemillError: BAD_REQUEST naming the field, or the engine's error.
        """
        texts = [seconds] if isinstance(seconds, str) else list(seconds)
        request = ScoreRequest(
            firsts=[first],
            seconds=texts,
            pairs=[(0, j) for j in range(len(texts))],
            params=("first", "seconds"),
            arrival=monotonic(),
        )
        found = self._vectors(run_inline(prepare_scores(self._model, request)))
        return scores_of(self._model, request, found)

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

    def _continuation(
        self,
        prompt: Any,
        sampling: SamplingParams,
        output: OutputRequest,
        program: OutputProgram | None,
        members: Mapping[str, Any],
    ) -> Prepared:
        """Prepare a text or token ids that are continued."""
        source = prompt if isinstance(prompt, str) else _token_ids(prompt)
        request = GenerateRequest(
            prompts=[source],
            sampling=sampling,
            output=output,
            program=program,
            arrival=monotonic(),
            **members,
        )
        return run_inline(prepare(self._model, request))

    def _conversation(
        self,
        messages: Any,
        sampling: SamplingParams,
        options: Mapping[str, Any],
        adapters: tuple[AdapterUse, ...],
    ) -> Prepared:
        """Prepare a conversation."""
        ours = {*ANSWER_FIELDS, *PROMPT_FIELDS, *INPUT_FIELDS}
        kwargs = {k: v for k, v in options.items() if k not in ours}
        request = GenerateRequest(
            messages=() if messages is None else messages,  # an error, as an empty list is
            sampling=sampling,
            output=OutputRequest.read(options),
            prompt_options=prompt_options_of(options, kwargs),
            arrival=monotonic(),
            names=Names("messages"),
            adapters=adapters,
            **input_members(options),
        )
        return run_inline(prepare(self._model, request))

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

    def _parts(self, prepared: Prepared) -> Iterator[AnswerDelta]:
        running = Running(prepared, self.tokenizer)
        for output in self._engine.run([prepared.engine_request(0, new_id("llm"))]):
            delta = self._take(running, output)
            if delta is not None and (found := delta.answer()) != NOTHING:
                yield found

    def _complete(self, batch: Sequence[Prepared], *, progress: bool) -> list[RequestOutput]:
        requests = [prepared.engine_request(0, new_id("llm")) for prepared in batch]
        running = {
            request.request_id: Running(prepared, self.tokenizer)
            for request, prepared in zip(requests, batch, strict=True)
        }
        with _Bar(sum(request.sampling.n for request in requests), progress) as bar:
            for output in self._engine.run(requests):
                self._take(running[output.request_id], output)
                if output.finish_reason is not None:
                    bar.advance()
        return [running[r.request_id].output for r in requests]

    def _take(self, running: Running, output: ChoiceOutput) -> ChoiceDelta | None:
        delta = running.take(output)
        if delta is not None and delta.stopped_here:
            self._engine.cancel(output.request_id, output.choice, FinishReason.STOP)
        return delta

    def _vectors(self, prepared: PreparedInputs) -> list[bytes]:
        """Each input's pooled vector as float32 bytes, in order."""
        requests = [prepared.engine_request(i, new_id("llm")) for i in range(len(prepared.inputs))]
        found: dict[str, bytes] = {}
        for output in self._engine.run(requests):
            if output.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
                raise exception_of(output.error)
            if output.finish_reason is not None:
                found[output.request_id] = output.pooled
        return [found[request.request_id] for request in requests]


@dataclass(frozen=True, slots=True)
class _Model:
    """What `prepare` needs to know; see `generation.request.Model`."""

    tokenizer: Tokenizer
    template: ChatTemplate
    chat: ChatSide
    defaults: Mapping[str, float | int]
    preset: Preset
    info: EngineInfo


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


__all__ = [
    "LLM",
    "Completion",
    "RequestOutput",
    "SamplingParams",
    "TidemillError",
    "ToolCall",
]
