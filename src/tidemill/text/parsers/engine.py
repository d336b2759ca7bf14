"""The parser of all formats: splits an output's text into reasoning, content and tool calls.

The events, concatenated by kind, do not depend on how the text is split into chunks (promise 8).
Each character is examined a bounded number of times. No text is lost: a malformed call is emitted
as content, with an event that states the reason.

White space around thinking and calls belongs to the layout and is dropped; elsewhere it is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from tidemill.text.parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Event,
    Malformed,
    Reasoning,
)
from tidemill.text.parsers.format import Format, NamedJson
from tidemill.text.parsers.readers import ends_itself, first_mark, reader_of
from tidemill.text.parsers.reading import Read, Reader


class ToolSpec(Protocol):
    """A tool that may be called; `text.tools.Tool` is one."""

    @property
    def name(self) -> str:
        """Of the function."""

    @property
    def schema(self) -> str:
        """JSON schema of its arguments, as JSON text."""


class _Marks:
    """Finds the first of several marks in a text that comes in chunks."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = sorted({m for m in marks if m}, key=len, reverse=True)
        self._search = re.compile("|".join(map(re.escape, self._marks)) or r"(?!)").search
        self._longest = max(map(len, self._marks), default=1)
        initials = "".join(sorted({re.escape(m[0]) for m in self._marks}))
        self._initial = re.compile(f"[{initials}]" if initials else r"(?!)")

    def find(self, text: str) -> tuple[int, str]:
        """Offset and text of the first mark; else the offset where one may begin, and ""."""
        match = self._search(text)
        if match is not None and not self._longer(text, match):
            return match.start(), match.group()
        for initial in self._initial.finditer(text, max(0, len(text) - self._longest + 1)):
            at = initial.start()
            if any(mark.startswith(text[at:]) for mark in self._marks):
                return (at, "") if match is None or at <= match.start() else _of(match)
        return (len(text), "") if match is None else _of(match)

    def _longer(self, text: str, match: re.Match[str]) -> bool:
        """The text ends inside a possible mark that is longer than the one found."""
        rest = text[match.start() :]
        return any(len(m) > len(rest) and m.startswith(rest) for m in self._marks)


def _of(match: re.Match[str]) -> tuple[int, str]:
    return match.start(), match.group()


class OutputParser:
    """Parses one output.

    Attributes:
        in_reasoning: the text so far ends inside the thinking.

    Args:
        form: the model's format.
        tools: the tools that may be called.
        parse_tools: parse tool calls; else their marks are content.
        parse_reasoning: parse thinking.
        starts_in_reasoning: the prompt ends inside the thinking.
        document: an answer that is not a call is a document. Once it has begun, its marks and its
            white space are content.
        continued: the output continues an answer that has begun.
        stream_arguments: emit a call while it is incomplete, because a grammar guarantees that it
            is valid. Otherwise a call is emitted when complete and valid, since events cannot be
            retracted.
    """

    def __init__(
        self,
        form: Format,
        tools: Sequence[ToolSpec] = (),
        *,
        parse_tools: bool = True,
        parse_reasoning: bool = True,
        starts_in_reasoning: bool = False,
        document: bool = False,
        continued: bool = False,
        stream_arguments: bool = False,
    ) -> None:
        self._form = form
        self._schemas = {tool.name: json.loads(tool.schema) for tool in tools}
        self._calls_on = parse_tools and form.syntax is not None
        self._think = form.think if parse_reasoning else None
        self._streaming = stream_arguments
        marks = [*form.dropped]
        if self._think is not None:
            marks.append(self._think.open)
        # A grammar enforces only calls that begin with the format's own marks.
        self._also = form.also if self._calls_on and not stream_arguments else ()
        if self._calls_on:
            marks += [form.begin, *form.section, *self._also]
        self._marks = _Marks(marks)
        self._close = _Marks([self._think.close] if self._think is not None else [])
        tail = form.syntax.tail if isinstance(form.syntax, NamedJson) else ""
        # Marks that may follow a call and belong to it; they are recognized only there.
        end = "" if ends_itself(form.syntax) else form.end
        self._after_marks = tuple(m for m in (tail.strip(), end, form.between.strip()) if m)
        self.in_reasoning = starts_in_reasoning and self._think is not None
        self._held = ""  # held back: may be the beginning of a mark
        self._space = ""  # white space that is content if content follows
        self._lead = not continued  # white space here is layout, and thinking may begin
        self._document = document
        self._gap = ""  # for a document: the rest of the gap between thinking and answer
        # A call without a begin mark may start at the beginning of the output or of a section.
        self._bare = self._calls_on and not form.begin
        self._fresh = self._bare and not form.section[0] and not continued
        self._after = False  # right after a call
        self._reader: Reader | None = None
        self._raw: list[str] = []  # text consumed by the reader since the last complete call
        self._index = 0
        self._started = False  # the open call's CallStart was emitted
        self._emitted = 0  # characters of its arguments that were emitted

    def push(self, text: str) -> list[Event]:
        """Add output text.

        Returns:
            The events that are now certain, in order.
        """
        events: list[Event] = []
        pending, self._held = self._held + text, ""
        while pending:
            pending = self._step(pending, events)
        return _joined(events)

    def finish(self, cut: bool = False) -> list[Event]:
        """End the output; return the remaining events.

        Args:
            cut: a length limit ended the output. A call that was being streamed stays incomplete
                without an error.
        """
        events: list[Event] = []
        held, self._held = self._held, ""
        if self._reader is not None:
            if self._started:
                if held:
                    self._raw.append(held)
                if not cut:
                    events.append(Malformed("the output ended inside a call", self._index))
                self._reader = None
            else:
                self._give_up("the output ended inside a call", events, plain=True)
        if held in self._form.dropped and self._is_free():
            self._met(held, events)  # it was held back because a longer mark was possible
        elif held and not self._started:
            if self.in_reasoning:
                self._reason(held, events)
            else:
                self._content(held, events)
        document = self._document and not self._index
        if not self.in_reasoning and self._space and (document or not self._lead):
            events.append(Content(self._space))
        self._space = ""
        return _joined(events)

    def _is_free(self) -> bool:
        """Not in thinking, not in a call and not right after one."""
        return self._reader is None and not self.in_reasoning and not self._after

    # -- one step: consumes some of the text, returns the rest --------------------------------

    def _step(self, text: str, events: list[Event]) -> str:
        if self._reader is not None:
            return self._read(text, events)
        if self.in_reasoning:
            return self._thinking(text, events)
        if self._after:
            return self._behind(text, events)
        if self._gap:
            return self._between(text)
        if self._fresh:
            return self._beginning(text, events)
        if self._document:
            return self._written(text, events)
        return self._free(text, events)

    def _thinking(self, text: str, events: list[Event]) -> str:
        at, mark = self._close.find(text)
        self._reason(text[:at], events)
        if not mark:
            self._held = text[at:]
            return ""
        self.in_reasoning, self._space, self._lead = False, "", True
        self._fresh = self._bare and not self._form.section[0]
        if self._document and self._think is not None:
            self._gap = self._think.gap
        return text[at + len(mark) :]

    def _between(self, text: str) -> str:
        """Between thinking and document: drop the gap, if present, and nothing else."""
        gap, self._gap = self._gap, ""
        if len(text) < len(gap) and gap.startswith(text):
            self._held, self._gap = text, gap
            return ""
        return text.removeprefix(gap)

    def _written(self, text: str, events: list[Event]) -> str:
        """A document: marks are recognized only before its first character."""
        if self._lead:
            at, mark = self._marks.find(text)
            if not text[:at].strip():
                self._space += text[:at]
                if mark:
                    return self._met(mark, events) + text[at + len(mark) :]
                self._held = text[at:]
                return ""
        self._say(self._space + text, events)
        return ""

    def _free(self, text: str, events: list[Event]) -> str:
        at, mark = self._marks.find(text)
        self._content(text[:at], events)
        if not mark:
            self._held = text[at:]
            return ""
        return self._met(mark, events) + text[at + len(mark) :]

    def _met(self, mark: str, events: list[Event]) -> str:
        """Handle a mark outside calls and thinking; return the part of it that is not consumed."""
        form = self._form
        if self._think is not None and mark == self._think.open:
            if not self._lead:  # the answer quotes the mark
                self._content(mark, events)
                return ""
            self.in_reasoning, self._space = True, ""
        elif self._calls_on and mark == form.begin:
            if form.leading and not self._lead:
                self._content(mark, events)
            else:
                self._open(mark)
        elif mark in self._also:
            at = mark.find(first_mark(form.syntax)) if first_mark(form.syntax) else -1
            self._open(mark if at < 0 else mark[:at])
            return "" if at < 0 else mark[at:]
        elif mark in form.section:
            self._lead = True
            self._fresh = self._bare and mark == form.section[0]
        else:
            self._fresh = self._bare and self._lead and not form.section[0]
            self._lead, self._space = True, ""
        return ""

    def _beginning(self, text: str, events: list[Event]) -> str:
        """Where a call may begin without a mark: only as the first content."""
        stripped = text.lstrip()
        if not stripped:
            self._space += text
            return ""
        for mark in self._form.dropped:
            if stripped.startswith(mark):
                return stripped[len(mark) :]
            if mark.startswith(stripped):
                self._held = text
                return ""
        self._fresh = False
        if stripped[0] not in "{[":
            return text
        self._space += text[: len(text) - len(stripped)]
        self._open("")
        return stripped

    def _behind(self, text: str, events: list[Event]) -> str:
        """Right after a call: its end mark and the separator from the next one."""
        stripped = text.lstrip()
        if not stripped:
            self._held = text
            return ""
        for mark in self._after_marks:
            if stripped.startswith(mark):
                return stripped[len(mark) :]
        if any(mark.startswith(stripped) for mark in self._after_marks):
            self._held = text
            return ""
        self._after, self._lead, self._fresh = False, True, self._bare
        return text

    # -- calls -------------------------------------------------------------------------------

    def _open(self, mark: str) -> None:
        syntax = self._form.syntax
        assert syntax is not None
        self._reader = reader_of(syntax, self._form.end, self._schemas)
        self._raw = [mark] if mark else []
        self._started, self._emitted = False, 0

    def _read(self, text: str, events: list[Event]) -> str:
        reader = self._reader
        assert reader is not None
        read = reader.feed(text)
        self._raw.append(text[: read.taken])
        complete = self._complete(read, events)
        if complete and self._streaming and not read.done:
            self._show(reader, events)
        if not complete:
            return text[read.taken :]
        if read.wrong:
            self._give_up(read.wrong, events, plain=read.plain)
        elif read.done:
            self._reader, self._raw, self._after = None, [], True
        return text[read.taken :]

    def _complete(self, read: Read, events: list[Event]) -> bool:
        """Emit complete calls; False if one names an unknown tool."""
        for name, arguments in read.calls:
            if name not in self._schemas:
                offered = ", ".join(list(self._schemas)[:8])
                self._give_up(f"unknown tool {name[:80]!r} (the tools are {offered})", events)
                return False
            self._announce(name, events)
            shown = self._emitted
            if rest := arguments[shown:]:
                events.append(CallArguments(self._index, rest))
            events.append(CallEnd(self._index))
            self._index += 1
            self._started, self._emitted, self._raw = False, 0, []
        return True

    def _announce(self, name: str, events: list[Event]) -> None:
        if not self._started:
            self._started = True
            self._space, self._lead = "", True
            events.append(CallStart(self._index, name))

    def _show(self, reader: Reader, events: list[Event]) -> None:
        """Emit the known part of the open call."""
        if reader.name is None or reader.name not in self._schemas:
            return
        self._announce(reader.name, events)
        text = "".join(reader.arguments)
        reader.arguments[:] = [text]
        known = text.lstrip()
        # Trailing white space may turn out to follow the arguments.
        known = known.rstrip() if not known.endswith('"') else known
        if len(known) > self._emitted:
            events.append(CallArguments(self._index, known[self._emitted :]))
            self._emitted = len(known)

    def _give_up(self, reason: str, events: list[Event], *, plain: bool = False) -> None:
        """Emit the text of a malformed call as content.

        Args:
            plain: the text need not have been meant as a call, in formats without call marks.
        """
        reader = self._reader
        named = reader is not None and reader.likely in self._schemas
        if not plain or self._form.begin or self._form.section[0] or named:
            events.append(Malformed(reason, self._index if self._started else None))
        raw = "".join(self._raw)
        self._index += self._started  # a call that was announced keeps its index
        self._reader, self._raw, self._fresh = None, [], False
        self._started, self._emitted = False, 0
        self._say(self._space + raw, events)

    # -- texts -------------------------------------------------------------------------------

    def _reason(self, text: str, events: list[Event]) -> None:
        kept = self._kept(text)
        if kept:
            events.append(Reasoning(kept))

    def _content(self, text: str, events: list[Event]) -> None:
        kept = self._kept(text)
        if kept:
            events.append(Content(kept))

    def _say(self, text: str, events: list[Event]) -> None:
        """Emit content verbatim."""
        self._space, self._lead = "", False
        if text:
            events.append(Content(text))

    def _kept(self, text: str) -> str:
        """The text without trailing white space, which is held back: a mark may follow it."""
        if self._lead:
            text = text.lstrip()
            if not text:
                return ""
            self._lead, self._space = False, ""
        whole = self._space + text
        kept = whole.rstrip()
        self._space = whole[len(kept) :]
        return kept


def _joined(events: list[Event]) -> list[Event]:
    """Merge adjacent events of a kind."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Content) and isinstance(last, Content):
            found[-1] = Content(last.text + event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            found[-1] = Reasoning(last.text + event.text)
        elif (
            isinstance(event, CallArguments)
            and isinstance(last, CallArguments)
            and last.index == event.index
        ):
            found[-1] = CallArguments(last.index, last.text + event.text)
        else:
            found.append(event)
    return found


def arguments_of(events: Sequence[Event], index: int) -> Any:
    """The decoded arguments of a call."""
    text = "".join(e.text for e in events if isinstance(e, CallArguments) and e.index == index)
    return json.loads(text)
