"""Readers of calls, one class per syntax; each consumes chunks and sees every character once.

A reader returns its results as `Read`s. The caller keeps the consumed text, which becomes content
if the call is malformed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidemill.text.parsers.format import (
    CallSyntax,
    JsonCall,
    NamedJson,
    PythonCalls,
    TaggedCall,
)
from tidemill.text.parsers.json_scan import JsonScan, State, escaped
from tidemill.text.parsers.python_calls import PythonReader
from tidemill.text.parsers.reading import MAX_HEADER, Read, Reader, Until
from tidemill.text.parsers.tagged import TaggedReader
from tidemill.text.parsers.unquoted import UnquotedScan, unquoted
from tidemill.text.parsers.values import dumps, no_constant


class _Object:
    """One JSON object, with its text.

    Args:
        quote: see `NamedJson`; empty: the object is JSON.
    """

    def __init__(self, quote: str = "") -> None:
        self._quote = quote
        self.scan = JsonScan(lenient=True)
        self._other = UnquotedScan(quote) if quote else None
        self.parts: list[str] = []

    def feed(self, chunk: str) -> tuple[State, int]:
        state, taken = (self._other or self.scan).feed(chunk)
        self.parts.append(chunk[:taken])
        return state, taken

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def arguments(self) -> str | None:
        """The whole object as JSON text; None if it is not a valid object."""
        if not self._quote:
            text = escaped(self.text)
            return text.strip() if isinstance(_loads(text), dict) else None
        try:
            return dumps(unquoted(self.text, self._quote))
        except (ValueError, RecursionError):
            return None


class JsonCallReader:
    """See `JsonCall`."""

    def __init__(self, syntax: JsonCall) -> None:
        self._syntax = syntax
        self._object: _Object | None = None
        self._in_list = False
        self._after = False  # an element of the list has ended
        self.name: str | None = None
        self.arguments: list[str] = []

    @property
    def likely(self) -> str | None:
        """See Reader."""
        return self.name

    def feed(self, chunk: str) -> Read:
        """See Reader."""
        read = Read()
        while read.taken < len(chunk) and not read.wrong and not read.done:
            if self._object is None:
                self._between(chunk, read)
            else:
                self._inside(chunk, read)
        return read

    def _between(self, chunk: str, read: Read) -> None:
        char = chunk[read.taken]
        if char.isspace():
            read.taken += 1
        elif char == "{" and not self._after:
            self._object, self.name, self.arguments = _Object(), None, []
        elif char == "[" and self._syntax.listed and not self._in_list:
            self._in_list = True
            read.taken += 1
        elif char == "," and self._after:
            self._after = False
            read.taken += 1
        elif char == "]" and self._in_list:
            read.taken += 1
            read.done = True
        else:
            read.wrong, read.plain = f"expected a JSON object, found {char!r}", True

    def _inside(self, chunk: str, read: Read) -> None:
        call = self._object
        assert call is not None
        before = call.scan.seen
        rest = chunk[read.taken :] if read.taken else chunk
        state, taken = call.feed(rest)
        read.taken += taken
        self._show(call, rest, before)
        if state is State.WRONG:
            read.wrong = "the call is not valid JSON"
            return
        if state is State.MORE:
            return
        found = _json_call(call.text, call.scan, self._syntax)
        self._object = None
        if isinstance(found, str):
            read.wrong, read.plain = found, found == _NO_NAME
            return
        read.calls.append(found)
        self.name, self.arguments = None, []
        self._after = self._in_list
        read.done = not self._in_list

    def _show(self, call: _Object, rest: str, before: int) -> None:
        """Update the known name and arguments of an open call."""
        syntax = self._syntax
        for member in call.scan.members:
            if syntax.keyed and self.name is None:
                self.name = member.key
            elif member.key in syntax.name and member.end >= 0 and self.name is None:
                value = _loads(call.text[member.start : member.end])
                self.name = value if isinstance(value, str) else None
            # Arguments that are JSON text within a string are known only when complete.
            if (syntax.keyed or member.key in syntax.arguments) and member.first == "{":
                end = member.end if member.end >= 0 else call.scan.seen
                start = max(member.start, before)
                if end > start:
                    self.arguments.append(rest[start - before : end - before])


_NO_NAME = "the object does not name a function"


def _json_call(text: str, scan: JsonScan, syntax: JsonCall) -> tuple[str, str] | str:
    value = _loads(escaped(text))
    if not isinstance(value, dict):
        return "the call is not valid JSON"
    held = value.get(syntax.inside, value) if syntax.inside else value
    if held is not value and isinstance(held, dict):
        return _written_call(held, syntax)
    if syntax.keyed:
        if len(value) != 1:
            return _NO_NAME
        name = next(iter(value))
    else:
        name = _name(value, syntax)
        if name is None:
            return _NO_NAME
    member = next((m for m in scan.members if syntax.keyed or m.key in syntax.arguments), None)
    if member is None:
        return name, "{}"
    return _named_arguments(name, text[member.start : member.end])


def _name(value: Mapping[str, Any], syntax: JsonCall) -> str | None:
    return next((value[k] for k in syntax.name if isinstance(value.get(k), str)), None)


def _written_call(value: Mapping[str, Any], syntax: JsonCall) -> tuple[str, str] | str:
    """A call nested in the object; its arguments' text is serialized again."""
    name = _name(value, syntax)
    if name is None:
        return _NO_NAME
    key = next((k for k in syntax.arguments if k in value), None)
    try:
        return _named_arguments(name, "{}" if key is None else dumps(value[key]))
    except ValueError:  # 1e999 is valid JSON but has no finite value
        return f"the arguments of {name!r} are not a JSON object"


def _named_arguments(name: str, text: str) -> tuple[str, str] | str:
    arguments = escaped(text)
    found = _loads(arguments)
    if isinstance(found, str):  # JSON text within a string
        arguments = escaped(found)
        found = _loads(arguments) if arguments.strip() else {}
        arguments = arguments.strip() or "{}"
    if not isinstance(found, dict):
        return f"the arguments of {name!r} are not a JSON object"
    return name, arguments.strip()


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None


class NamedJsonReader:
    """See `NamedJson`."""

    def __init__(self, syntax: NamedJson) -> None:
        self._syntax = syntax
        # A brace ends a name too: models omit the mark between name and arguments.
        self._header = Until(syntax.after, "{")
        self._object: _Object | None = None
        self.name: str | None = None
        self.arguments: list[str] = []

    @property
    def likely(self) -> str | None:
        """See Reader."""
        return self.name

    def feed(self, chunk: str) -> Read:
        """See Reader."""
        read = Read()
        opened = ""
        if self._object is None:
            opened = self._feed_header(chunk, read)
        if self._object is None or read.wrong:
            return read
        if opened:
            self._feed_object(opened, read, counted=True)
        if read.taken < len(chunk) and not read.done and not read.wrong:
            self._feed_object(chunk[read.taken :], read)
        return read

    def _feed_object(self, text: str, read: Read, *, counted: bool = False) -> None:
        body = self._object
        assert body is not None and self.name is not None
        state, taken = body.feed(text)
        read.taken += 0 if counted else taken
        if not self._syntax.quote:
            self.arguments.append(text[:taken])
        if state is State.MORE:
            return
        arguments = body.arguments() if state is State.DONE else None
        if arguments is None:
            read.wrong = f"the arguments of {self.name!r} are not a JSON object"
        else:
            read.calls.append((self.name, arguments))
            read.done = True

    def _feed_header(self, chunk: str, read: Read) -> str:
        """Read the name and its marks; return the part of the object consumed with them."""
        header, read.taken = self._header.feed(chunk)
        if header is None:
            if self._header.size > MAX_HEADER:
                read.wrong = "the function name is not terminated"
            return ""
        syntax, name = self._syntax, header.strip()
        if syntax.id_first:
            name = name.partition(syntax.before)[2] or name
        name = name.removeprefix(syntax.before)
        for mark in syntax.id_marks:
            name = name.split(mark)[0]
        self.name = name.strip()
        self._object = _Object(syntax.quote)
        return "{" if self._header.mark == "{" else ""


def ends_itself(syntax: CallSyntax | None) -> bool:
    """A reader of this syntax consumes the format's end mark too."""
    if isinstance(syntax, PythonCalls):
        return not syntax.bracketed
    return isinstance(syntax, TaggedCall) and not syntax.end


def first_mark(syntax: CallSyntax | None) -> str:
    """The mark that a reader of this syntax expects first; empty for none."""
    if isinstance(syntax, TaggedCall):
        return syntax.name[0]
    return syntax.before if isinstance(syntax, NamedJson) else ""


def reader_of(syntax: CallSyntax, end: str, schemas: Mapping[str, Any]) -> Reader:
    """A new reader of this syntax."""
    if isinstance(syntax, JsonCall):
        return JsonCallReader(syntax)
    if isinstance(syntax, NamedJson):
        return NamedJsonReader(syntax)
    if isinstance(syntax, TaggedCall):
        return TaggedReader(syntax, end, schemas)
    return PythonReader(syntax, end)
