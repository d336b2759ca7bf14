"""The offline Python API: a model in this process, without a server.

    from tidemill import LLM, SamplingParams
    llm = LLM("path/to/model")
    print(llm.generate("The tide", SamplingParams(max_tokens=32))[0].text)

The engine is the server's, so answers are the server's for equal tokens, parameters and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Any

from tidemill.base.clock import wall
from tidemill.base.errors import TidemillError, bad_request, config_error
from tidemill.base.ids import new_id
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, TokenLogprob
from tidemill.contract.resolve import resolve
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import EngineInfo, EngineStats
from tidemill.engine.offline import InprocEngine
from tidemill.engine.streams import raise_error
from tidemill.loading.checkpoint import open_model
from tidemill.loading.named import locate
from tidemill.loading.parts import ModelFiles
from tidemill.text.abilities import Abilities
from tidemill.text.conversation import check_complete, check_kwargs, check_messages
from tidemill.text.output import OutputText
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None


@dataclass(slots=True)
class Completion:
    """One answer.

    Attributes:
        index: which choice.
        text: what may be read; special tokens and stop strings are not in it.
        token_ids: everything generated and counted, the end token included.
        finish_reason: ``stop`` or ``length``.
        stop_string: the stop string that ended it, if one did.
        logprobs: one per token, when asked for.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_string: str | None = None
    logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its answers.

    Attributes:
        prompt_token_ids: what the model read.
        sampling: what was applied, seed and max_tokens included.
        outputs: one per choice.
        cached_tokens: prompt tokens found in the prefix cache.
        prompt_logprobs: one per prompt token (None for the first), when asked for.
    """

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    outputs: list[Completion]
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.outputs[0].text


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model's files with its text side ready; no weights are loaded.

    Attributes:
        files: what `loading` found.
        name: the name it is served under unless another is given.
        tokenizer, template: the text side.
        defaults: sampling values the model's makers recommend, only those they state.
    """

    files: ModelFiles
    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: dict[str, float | int]

    @classmethod
    def open(cls, model: str | Path | None = None) -> OpenedModel:
        """Open a folder, a GGUF file, a hub id or a bundled name; None is the bundled model.

        Raises:
            TidemillError: NOT_FOUND, MODEL_FILE, UNSUPPORTED; CONFIG without a bundled model.
        """
        path, name = locate(model)
        files = open_model(path)
        tokenizer = Tokenizer(files.tokenizer)
        template = ChatTemplate(files.tokenizer.chat_template, tokenizer.special)
        stated = {k: v for k, v in asdict(files.generation).items() if v is not None}
        return cls(files, name, tokenizer, template, stated)


@dataclass(slots=True)
class _Choice:
    completion: Completion
    text: OutputText


@dataclass(slots=True)
class _Running:
    output: RequestOutput
    choices: list[_Choice]


class LLM:
    """A model loaded into this process.

    Args:
        model: a Hugging Face folder, a GGUF file, a hub id, or a bundled model's name; None is the
            bundled model.
        progress: called with a line for each thing done while loading.
        **settings: any field of `EngineConfig` but ``model`` (``quantize="q8_0"``, ``threads=4``,
            ``kv_memory=2**30``, ...).

    Raises:
        TidemillError: the model or a setting cannot be used; its message says what to do.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        progress: Callable[[str], None] = lambda line: None,
        **settings: Any,
    ) -> None:
        opened = OpenedModel.open(model)
        settings.setdefault("served_name", opened.name)
        unknown = sorted(set(settings) - set(EngineConfig.__struct_fields__))
        if unknown or "model" in settings:
            name = unknown[0] if unknown else "model"
            raise config_error(name, f"LLM() knows no setting {name!r}; see EngineConfig")
        config = EngineConfig(model=str(opened.files.path), **settings).validate()
        self.tokenizer = opened.tokenizer
        self.template = opened.template
        self.defaults = opened.defaults
        self._engine = InprocEngine.open(config, progress)

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved at its start."""
        return self._engine.info

    @property
    def stats(self) -> EngineStats:
        """The engine's figures as of its latest step."""
        return self._engine.stats

    def sampling(self, **values: Any) -> SamplingParams:
        """Sampling parameters with the model's recommended values where `values` has none."""
        return SamplingParams(**{**self.defaults, **values})

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Continue one prompt or many; many run together.

        Args:
            prompts: a text, a sequence of token ids, or a sequence of either.
            params: for all, or one per prompt. None takes what the model's makers recommend; given
                ones are used as they are.
            progress: show a progress bar on stderr.

        Raises:
            TidemillError: BAD_REQUEST naming the field, or what the engine said.
        """
        token_ids = [self._encode(p) for p in _as_list(prompts)]
        return self._complete(token_ids, params, at_start=False, progress=progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        progress: bool = False,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or many.

        Args:
            messages: a conversation (dicts with role and content) or a list of conversations.
            params, progress: see `generate`.
            **template_kwargs: variables of the chat template (``enable_thinking=False``).
        """
        first = messages[0] if isinstance(messages, list | tuple) and messages else None
        conversations: Sequence[Any] = messages if isinstance(first, list | tuple) else [messages]
        token_ids = [self.chat_tokens(c, **template_kwargs) for c in conversations]
        return self._complete(token_ids, params, at_start=True, progress=progress)

    def chat_tokens(self, messages: Sequence[Message], **template_kwargs: Any) -> tuple[int, ...]:
        """The prompt's token ids for a conversation, by the model's chat template."""
        source = self.template.source or ""
        plain = check_messages(messages, Abilities.of(self.template), source)
        check_kwargs(template_kwargs, source)
        text = self.template.render(plain, **template_kwargs)
        check_complete(plain, text)
        return tuple(self.tokenizer.encode(text, add_special=False))

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        **template_kwargs: Any,
    ) -> Iterator[str]:
        """Generate one answer and yield its text as it comes; leaving the iterator stops it.

        Args:
            prompt: a text, token ids, or a conversation.
            params: see `generate`; `n` must be 1.
            **template_kwargs: for a conversation.
        """
        chat = not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], Mapping)
        token_ids = (
            self.chat_tokens(prompt, **template_kwargs)  # type: ignore[arg-type]
            if chat
            else self._encode(prompt)  # type: ignore[arg-type]
        )
        [request] = self._requests([token_ids], params)
        if request.sampling.n != 1:
            raise bad_request("n", "stream gives one answer; use generate for several")
        return self._texts(request, at_start=chat)

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

    def _requests(self, prompts: Sequence[tuple[int, ...]], params: Params) -> list[EngineRequest]:
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.sampling()] * len(prompts)
        if isinstance(params, str | Mapping) or not all(
            isinstance(p, SamplingParams) for p in params
        ):
            raise bad_request("params", "params must be SamplingParams, or one for each prompt")
        if len(params) != len(prompts):
            raise bad_request(
                "params", f"{len(params)} sampling parameters for {len(prompts)} prompts"
            )
        info = self.info
        return [
            EngineRequest(
                request_id=new_id("llm"),
                prompt_token_ids=prompt,
                sampling=resolve(
                    wanted,
                    prompt_tokens=len(prompt),
                    max_model_len=info.max_model_len,
                    vocab_size=info.vocab_size,
                ),
                arrival=wall(),
            )
            for prompt, wanted in zip(prompts, params, strict=True)
        ]

    def _texts(self, request: EngineRequest, *, at_start: bool) -> Iterator[str]:
        running = self._start(request, at_start=at_start)
        for output in self._engine.run([request]):
            shown = self._take(running, output)
            if shown:
                yield shown

    def _complete(
        self,
        prompts: Sequence[tuple[int, ...]],
        params: Params,
        *,
        at_start: bool,
        progress: bool,
    ) -> list[RequestOutput]:
        requests = self._requests(prompts, params)
        running = {r.request_id: self._start(r, at_start=at_start) for r in requests}
        with _Bar(sum(r.sampling.n for r in requests), progress) as bar:
            for output in self._engine.run(requests):
                self._take(running[output.request_id], output)
                if output.finish_reason is not None:
                    bar.advance()
        return [running[r.request_id].output for r in requests]

    def _start(self, request: EngineRequest, *, at_start: bool) -> _Running:
        sampling = request.sampling
        logprobs = sampling.logprobs is not None
        choices = [
            _Choice(
                Completion(index, logprobs=[] if logprobs else None),
                OutputText(
                    self.tokenizer,
                    stop=sampling.stop,
                    min_tokens=sampling.min_tokens,
                    at_start=at_start,
                ),
            )
            for index in range(sampling.n)
        ]
        output = RequestOutput(request.prompt_token_ids, sampling, [c.completion for c in choices])
        return _Running(output, choices)

    def _take(self, running: _Running, output: ChoiceOutput) -> str:
        """Enter an engine output; returns the text that is new. Surplus after a stop is dropped."""
        choice = running.choices[output.choice]
        completion, text = choice.completion, choice.text
        if output.finish_reason is FinishReason.ERROR and output.error is not None:
            raise_error(output.error)
        if completion.finish_reason is not None:
            return ""
        if output.cached_tokens is not None:
            running.output.cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            running.output.prompt_logprobs = list(output.prompt_logprobs)
        before = text.tokens
        shown, stopped = text.push(output.token_ids, hide_last=output.stop_token is not None)
        if output.finish_reason is not None and not stopped:
            shown += text.finish()
            stopped = text.stopped
        taken = text.tokens - before
        completion.text += shown
        completion.token_ids += output.token_ids[:taken]
        if completion.logprobs is not None and output.logprobs is not None:
            completion.logprobs += output.logprobs[:taken]
        if stopped:
            completion.stop_string = text.stop_string
            completion.finish_reason = FinishReason.STOP.value
            if output.finish_reason is None:
                self._engine.cancel(output.request_id, output.choice, FinishReason.STOP)
        elif output.finish_reason is not None:
            completion.finish_reason = output.finish_reason.value
        return shown


def _as_list(prompts: Any) -> list[Prompt]:
    """One prompt or many as many; what is in them is looked at when they are encoded."""
    if isinstance(prompts, str) or not isinstance(prompts, Iterable):
        return [prompts]
    if isinstance(prompts, bytes | Mapping | Set):
        raise _no_prompt(prompts)
    items = list(prompts)
    if items and isinstance(items[0], str | Iterable):
        return items
    return [items] if items else []


def _token_ids(prompt: object) -> tuple[int, ...]:
    """Token ids of a prompt that is no text; integers of numpy count."""
    if isinstance(prompt, bytes | Mapping | Set) or not isinstance(prompt, Iterable):
        raise _no_prompt(prompt)
    items = list(prompt)
    if any(isinstance(item, bool) or not hasattr(item, "__index__") for item in items):
        raise _no_prompt(items)
    return tuple(index(item) for item in items)


def _no_prompt(value: object) -> TidemillError:
    return bad_request(
        "prompt", f"a prompt is a text or a sequence of token ids, got {repr(value)[:80]}"
    )


class _Bar:
    """A progress bar on stderr, if wanted."""

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
        """One choice is done."""
        if self._bar is not None:
            self._bar.advance(self._task)


__all__ = ["LLM", "Completion", "OpenedModel", "RequestOutput", "SamplingParams", "TidemillError"]
