"""One chat choice's output: tokens to reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.text.output import OutputText
from tidemill.text.parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Event,
    Malformed,
    Reasoning,
)
from tidemill.text.stops import StopMatcher, StopSet
from tidemill.text.tokenizer import Tokenizer


class Parser(Protocol):
    """Splits an output into reasoning, content and tool calls; see `tidemill.text.parsers`."""

    in_reasoning: bool
    """The text so far ends inside the thinking."""

    def push(self, text: str) -> Iterable[Event]:
        """Add output text; return the events that are now certain."""

    def finish(self, cut: bool = False) -> Iterable[Event]:
        """End the output; return events for the text held back. `cut`: a length limit ended it."""


ParserFactory = Callable[[], Parser]


@dataclass(frozen=True, slots=True)
class CallPart:
    """The next part of a tool call.

    Attributes:
        index: of the call in its answer.
        name: set in the call's first part only.
        arguments: the next part of the arguments' JSON text.
    """

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """The output that some tokens added.

    Attributes:
        content, reasoning: text added to the answer and to the thinking.
        calls: parts added to the calls, at most one per call, in order.
        errors: one reason for each malformed tool call.
        parts: the same one after another as written, each of one kind, where they are of several.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    errors: tuple[str, ...] = ()
    parts: tuple[AnswerDelta, ...] = field(default=(), compare=False)

    @property
    def in_order(self) -> tuple[AnswerDelta, ...]:
        """Deltas of one kind each, as written."""
        return self.parts or (self,)

    def __add__(self, later: AnswerDelta) -> AnswerDelta:
        return AnswerDelta.joined((self, later))

    @staticmethod
    def joined(deltas: Iterable[AnswerDelta]) -> AnswerDelta:
        """One delta of several, in order."""
        gathered = _DeltaBuilder()
        for part in deltas:
            gathered.content.append(part.content)
            gathered.reasoning.append(part.reasoning)
            gathered.errors += part.errors
            for call in part.calls:
                gathered.add_part(call)
            gathered.order += part.in_order
        return gathered.found()


NOTHING = AnswerDelta()


@dataclass(frozen=True, slots=True)
class TextLook:
    """How an output's text is written.

    Attributes:
        include_stop, skip_special_tokens, spaces_between_special_tokens: see `OutputText`.
    """

    include_stop: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


PLAIN_LOOK = TextLook()


class AnswerText:
    """Decodes and parses a choice's tokens.

    Stop strings match in the content only, never in thinking or tool calls. Without a parser all
    text is content. Content before and after a call is separated by a newline unless white space
    separates it already.

    Attributes:
        reasoning_tokens: tokens of the thinking, its delimiters included.
        calls: complete tool calls so far.

    Args:
        tokenizer: the vocabulary.
        parser: of this choice, or None.
        kept: special tokens that the parser reads.
        look: how the text is written.
        stop, min_tokens, at_start, track: see `OutputText`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        parser: Parser | None = None,
        *,
        kept: frozenset[int] = frozenset(),
        look: TextLook = PLAIN_LOOK,
        stop: Sequence[str] | StopSet = (),
        min_tokens: int = 0,
        at_start: bool = False,
        track: bool = False,
    ) -> None:
        self._parser = parser
        self._min_tokens = min_tokens
        self._matcher = None
        if stop and parser is not None:
            self._matcher = StopMatcher(stop, include=look.include_stop)
        self._text = OutputText(
            tokenizer,
            stop=() if parser is not None else stop,
            include_stop=look.include_stop,
            skip_special_tokens=look.skip_special_tokens,
            spaces_between_special_tokens=look.spaces_between_special_tokens,
            min_tokens=min_tokens,
            kept=kept,
            at_start=at_start,
            track=track,
        )
        self.reasoning_tokens = 0
        self.calls = 0
        self._last = ""  # last character of the content
        self._call_seen = False  # a call followed that character

    @property
    def tokens(self) -> int:
        """See `OutputText`."""
        return self._text.tokens

    @property
    def offsets(self) -> list[int]:
        """See `OutputText`."""
        return self._text.offsets

    @property
    def pieces(self) -> list[bytes]:
        """See `OutputText`."""
        return self._text.pieces

    @property
    def stopped(self) -> bool:
        """True once a stop string matched."""
        return self.stop_string is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that matched, or None."""
        return self._text.stop_string if self._matcher is None else self._matcher.matched

    def push(
        self, token_ids: Sequence[int], *, hide_last: bool = False
    ) -> tuple[AnswerDelta, bool]:
        """Add accepted tokens; return the output that may be shown, and whether it has stopped.

        Args:
            token_ids: newly accepted tokens, in order.
            hide_last: see `OutputText.push`.
        """
        parser = self._parser
        if parser is None:
            text, stopped = self._text.push(token_ids, hide_last=hide_last)
            return (AnswerDelta(text) if text else NOTHING), stopped
        # Token by token: the count of thinking tokens and the position of a stop must not depend on
        # how many tokens a step produces.
        gathered = _DeltaBuilder()
        last = len(token_ids) - 1
        for index, token_id in enumerate(token_ids):
            if self.stopped:
                break
            before = parser.in_reasoning
            text, _ = self._text.push((token_id,), hide_last=hide_last and index == last)
            if text:
                self._take(gathered, parser.push(text))
            if before or parser.in_reasoning:
                self.reasoning_tokens += 1
        return gathered.found(), self.stopped

    def finish(self, *, cut: bool = False) -> AnswerDelta:
        """End the choice; return the output held back, which is nothing after a stop string.

        Args:
            cut: a length limit ended the output.
        """
        parser = self._parser
        if parser is None:
            text = self._text.finish()
            return AnswerDelta(text) if text else NOTHING
        gathered = _DeltaBuilder()
        if self.stopped:
            return NOTHING
        if text := self._text.finish():
            self._take(gathered, parser.push(text))
        self._take(gathered, parser.finish(cut))
        if self._matcher is not None and not self.stopped:
            gathered.add(Content(self._matcher.finish()))
        return gathered.found()

    def _take(self, gathered: _DeltaBuilder, events: Iterable[Event]) -> None:
        for event in events:
            if self.stopped:
                return
            if isinstance(event, Content) and event.text:
                text = self._separate(event.text)
                if self._matcher is not None:
                    armed = self.tokens >= self._min_tokens
                    text = self._matcher.push(text, armed=armed)[0]
                event = Content(text)
            if isinstance(event, CallEnd):
                self.calls += 1
                self._call_seen = True
            gathered.add(event)

    def _separate(self, text: str) -> str:
        """Prepend a newline to the first content after a call, unless white space is there."""
        glued = self._last and not self._last.isspace() and not text[0].isspace()
        if self._call_seen and glued:
            text = "\n" + text
        self._last, self._call_seen = text[-1], False
        return text


class _DeltaBuilder:
    """The events of a step, concatenated by kind."""

    __slots__ = ("calls", "content", "errors", "order", "reasoning")

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, CallPart] = {}
        self.errors: list[str] = []
        self.order: list[Event | AnswerDelta] = []

    def add(self, event: Event) -> None:
        if isinstance(event, Content):
            if event.text:
                self.content.append(event.text)
                self.order.append(event)
        elif isinstance(event, Reasoning):
            self.reasoning.append(event.text)
            self.order.append(event)
        elif isinstance(event, CallStart | CallArguments):
            self.add_part(_call_part(event))
            self.order.append(event)
        elif isinstance(event, Malformed):
            self.errors.append(event.reason)

    def add_part(self, part: CallPart) -> None:
        known = self.calls.get(part.index)
        if known is not None:
            part = CallPart(part.index, known.name, known.arguments + part.arguments)
        self.calls[part.index] = part

    def found(self) -> AnswerDelta:
        kinds = bool(self.content) + bool(self.reasoning) + bool(self.calls)
        return AnswerDelta(
            "".join(self.content),
            "".join(self.reasoning),
            tuple(self.calls.values()),
            tuple(self.errors),
            tuple(map(_single, self.order)) if kinds > 1 else (),
        )


def _call_part(event: CallStart | CallArguments) -> CallPart:
    if isinstance(event, CallStart):
        return CallPart(event.index, event.name, "")
    return CallPart(event.index, None, event.text)


def _single(event: Event | AnswerDelta) -> AnswerDelta:
    """An event of an output as a delta."""
    if isinstance(event, Content):
        return AnswerDelta(event.text)
    if isinstance(event, Reasoning):
        return AnswerDelta(reasoning=event.text)
    if isinstance(event, CallStart | CallArguments):
        return AnswerDelta(calls=(_call_part(event),))
    assert isinstance(event, AnswerDelta)
    return event
