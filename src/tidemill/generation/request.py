"""What a client asks for, in no dialect's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidemill.contract.program import OutputProgram
from tidemill.contract.request import AdapterUse
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import EngineInfo
from tidemill.generation.caller import ANONYMOUS, Caller
from tidemill.text.answering import ChatSide, OutputRequest
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tidemill.generation.preset import Preset


@dataclass(frozen=True, slots=True)
class Parts:
    """A prompt of texts and token ids, joined in this order. Start tokens go before a text at its
    beginning, as before a prompt that is a text."""

    parts: Sequence[str | Sequence[int]]


Source = str | Sequence[int] | Parts
"""A prompt or input: a text, token ids, or parts of both kinds."""


class Model(Protocol):
    """What preparing a request needs to know of the model that answers it."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    @property
    def template(self) -> ChatTemplate:
        """Its chat template."""

    @property
    def chat(self) -> ChatSide:
        """What both support in a chat."""

    @property
    def defaults(self) -> Mapping[str, float | int]:
        """Sampling values where a request leaves a field out."""

    @property
    def preset(self) -> Preset:
        """What it brings to every request."""

    @property
    def info(self) -> EngineInfo:
        """The properties that the engine resolved at its start."""


class Names(NamedTuple):
    """How a dialect calls the fields that errors of preparation name.

    Attributes:
        prompt: the field of the messages, prompts or inputs.
        max_tokens: the field that bounds the output.
        context: the field that bounds both together.
        suffix: the field of what follows a gap.
    """

    prompt: str = "prompt"
    max_tokens: str = "max_tokens"
    context: str = "context"
    suffix: str = "suffix"

    def numbered(self, count: int) -> list[str]:
        """A name for each of `count` prompts."""
        return [self.prompt] if count == 1 else [f"{self.prompt}[{i}]" for i in range(count)]


@dataclass(frozen=True, slots=True)
class Gap:
    """What an output that fills a gap fits to, besides the prompt before it.

    Attributes:
        suffix: the text after the gap.
        files: names and texts of other files, the most distant first.
        begun: the beginning of the output, which is already known.
    """

    suffix: str
    files: Sequence[tuple[str, str]] = ()
    begun: str = ""


class Cut(Enum):
    """The side of an input that is cut off where the input is too long."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """What a request says of tokens by their texts instead of their ids.

    Attributes:
        biased: texts and the bias that each of their tokens gets, like `SamplingParams.logit_bias`,
            whose entries take precedence; of two texts with a token in common the later one does.
        banned: texts that the output must not contain, each as it is tokenized alone and after a
            space.
        no_ends: none of the model's end tokens is sampled, so that only stops and lengths end the
            output.
    """

    biased: Sequence[tuple[str, float]] = ()
    banned: Sequence[str] = ()
    no_ends: bool = False


NO_TEXTS = TokenTexts()

AskedAdapters = str | Mapping[str, float] | Mapping[str | int, float]

FITTING = -1
"""`GenerateRequest.keep_last`: as many tokens as fit."""

_PLAIN_NAMES = Names()
_NO_OUTPUT_REQUEST = OutputRequest()
_NO_PROMPT_OPTIONS = PromptOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A request for generated text.

    Attributes:
        messages: a conversation, as `text.prompt.render_prompt` takes it; excludes `prompts`.
        prompts: texts to continue, or their token ids.
        sampling: unresolved: the model's defaults fill in what it leaves out.
        output: the constraint on the answer, tools, thinking, verbosity.
        prompt_options: how the chat template renders the conversation.
        program: a constraint in the engine's own form; excludes `output.constraint`.
        adapter: adapters as the request names them: a name, or names or numbers with their scales.
            None: those that the model's name means.
        adapters: what that means: their changes are added up; none: the base model.
        drop_oldest: the oldest messages may be left out where the conversation does not fit.
        clip_max_tokens: an output bound beyond the context means what is left of it.
        texts: tokens by their texts, with what holds of them.
        keep_last: only the last so many tokens of each prompt are used (FITTING: as many as fit
            beside the output; one without a bound gets an eighth of the context); None: all.
        cut: the side that `keep_last` cuts off; END: the first tokens are used.
        add_special: the tokenizer's start (and end) tokens go around texts; None: around `prompts`,
            but not around a conversation, whose template writes them.
        scored: only the prompt is scored: the one token that a step samples is not output.
        gap: the prompts end at a gap, which the output fills; excludes `messages`.
        context: tokens of prompt and output together; None: as many as the model takes. More
            than that is an error.
        ends_with_context: `sampling.max_tokens` is an upper bound: where the context has less room,
            it ends the output, and nothing is refused.
        speculation: what drafts for it (`contract.speculation.BY_REQUEST`); None: the engine's.
        prediction: text that the output is expected to be like; drafts are taken from it.
        caller: who asks, with priority and deadline.
        arrival: seconds of `base.clock.monotonic` when the request was received.
        names: for errors.
    """

    messages: Sequence[Mapping[str, Any]] | None = None
    prompts: Sequence[Source] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    output: OutputRequest = _NO_OUTPUT_REQUEST
    prompt_options: PromptOptions = _NO_PROMPT_OPTIONS
    program: OutputProgram | None = None
    adapter: AskedAdapters | None = None
    adapters: tuple[AdapterUse, ...] = ()
    drop_oldest: bool = False
    clip_max_tokens: bool = False
    texts: TokenTexts = NO_TEXTS
    keep_last: int | None = None
    cut: Cut = Cut.START
    add_special: bool | None = None
    scored: bool = False
    gap: Gap | None = None
    context: int | None = None
    ends_with_context: bool = False
    speculation: str | None = None
    prediction: str = ""
    caller: Caller = ANONYMOUS
    arrival: float = 0.0
    names: Names = _PLAIN_NAMES

    @property
    def num_prompts(self) -> int:
        """A conversation is one prompt."""
        return 1 if self.messages is not None else len(self.prompts)

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""
        return self.num_prompts * self.sampling.n

    @property
    def num_computed(self) -> int:
        """Sequences that are computed for them."""
        return self.num_prompts * self.sampling.width

    @property
    def continued(self) -> bool:
        """The output continues the conversation's final message."""
        return bool(self.prompt_options.continue_final_message)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """A request for one vector for each input.

    Attributes:
        inputs: texts or token ids.
        dimensions: numbers of a vector; None: all.
        prompt_name: the model's own prompt to put before each text.
        cut: what is cut off an input that is too long; None: it is an error.
        context: tokens of an input; None: as many as the model takes. More than that is an error.
        param, context_param: the fields of the inputs and of `context`, for errors.
        caller, arrival: see `GenerateRequest`.
    """

    inputs: Sequence[Source]
    dimensions: int | None = None
    prompt_name: str | None = None
    cut: Cut | None = None
    context: int | None = None
    param: str = "input"
    context_param: str = "context"
    caller: Caller = ANONYMOUS
    arrival: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """A request for the relevance of pairs of texts.

    Attributes:
        firsts, seconds: the texts (queries, documents).
        pairs: indices into them.
        cut: what is cut off a text that is too long (of a pair that is read as one input: off the
            second); None: it is an error.
        context: tokens of an input, as of `EmbedRequest`.
        second_tokens: tokens of each of `seconds`; more are cut off; None: all are read.
        params, context_param: the fields of the texts and of `context`, for errors.
        caller, arrival: see `GenerateRequest`.
    """

    firsts: Sequence[str]
    seconds: Sequence[str]
    pairs: Sequence[tuple[int, int]]
    cut: Cut | None = None
    context: int | None = None
    second_tokens: int | None = None
    params: tuple[str, str] = ("first", "second")
    context_param: str = "context"
    caller: Caller = ANONYMOUS
    arrival: float = 0.0
