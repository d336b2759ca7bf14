"""Readers of one call section's body, one per syntax: fed with chunks, each character once.

A reader says what it found in `Read`s; the characters it took are its own to give back if they turn
out to be no call.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tidemill.text.parsers.format import (
    CallSyntax,
    JsonCall,
    NamedJson,
    PythonCalls,
    TaggedCall,
)
from tidemill.text.parsers.json_scan import JsonScan, State
from tidemill.text.parsers.values import is_text, no_constant, resolved, typed

MAX_HEADER = 1024
"""Characters of a name and what is around it; a longer one is no call."""
MAX_PYTHON = 200_000
"""Characters of Python calls that are read."""


@dataclass(slots=True)
class Read:
    """What a reader made of a chunk.

    Attributes:
        taken: characters of the chunk that belong to the calls.
        calls: complete ones, as (name, arguments' JSON text).
        wrong: why what was taken since the last complete call is no call; empty: it may be one.
        plain: with `wrong`: it never looked like a call, and nobody needs to be told.
        done: nothing more belongs to the calls.
    """

    taken: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list)
    wrong: str = ""
    plain: bool = False
    done: bool = False


class Reader(Protocol):
    """Reads a body. `name` and `arguments` are what is known of a call that is still open, for
    those who show it as it comes; `arguments` grows."""

    name: str | None
    arguments: list[str]

    def feed(self, chunk: str) -> Read:
        """More of the body."""


class _Until:
    """Text up to a mark, whose characters may come one at a time."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._parts: list[str] = []
        self._tail = ""
        self.size = 0

    def feed(self, chunk: str) -> tuple[str | None, int]:
        """The text before the mark once it is there, and how much of the chunk was taken."""
        window = self._tail + chunk
        at = window.find(self._mark)
        if at < 0:
            keep = min(len(window), len(self._mark) - 1)
            self._parts.append(window[: len(window) - keep])
            self._tail = window[len(window) - keep :]
            self.size += len(chunk)
            return None, len(chunk)
        taken = at + len(self._mark) - len(self._tail)
        self._parts.append(window[:at])
        return "".join(self._parts), taken


class _Object:
    """One JSON object, with its text."""

    def __init__(self) -> None:
        self.scan = JsonScan()
        self.parts: list[str] = []

    def feed(self, chunk: str) -> tuple[State, int]:
        state, taken = self.scan.feed(chunk)
        self.parts.append(chunk[:taken])
        return state, taken

    @property
    def text(self) -> str:
        return "".join(self.parts)


class JsonCallReader:
    """See `JsonCall`."""

    def __init__(self, syntax: JsonCall) -> None:
        self._syntax = syntax
        self._object: _Object | None = None
        self._in_list = False
        self._after = False  # an element of the list has ended
        self.name: str | None = None
        self.arguments: list[str] = []

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
            read.wrong = f"a JSON object was expected where {char!r} stands"

    def _inside(self, chunk: str, read: Read) -> None:
        call = self._object
        assert call is not None
        before = call.scan.seen
        rest = chunk[read.taken :] if read.taken else chunk
        state, taken = call.feed(rest)
        read.taken += taken
        self._show(call, rest, before)
        if state is State.WRONG:
            read.wrong = "the call is no valid JSON"
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
        """Keep what is known of an open call up to date."""
        for member in call.scan.members:
            if member.key in self._syntax.name and member.end >= 0 and self.name is None:
                value = _loads(call.text[member.start : member.end])
                self.name = value if isinstance(value, str) else None
            if member.key in self._syntax.arguments:
                end = member.end if member.end >= 0 else call.scan.seen
                start = max(member.start, before)
                if end > start:
                    self.arguments.append(rest[start - before : end - before])


_NO_NAME = "the object names no function"


def _json_call(text: str, scan: JsonScan, syntax: JsonCall) -> tuple[str, str] | str:
    value = _loads(text)
    if not isinstance(value, dict):
        return "the call is no valid JSON"
    key = next((k for k in syntax.name if isinstance(value.get(k), str)), None)
    if key is None:
        return _NO_NAME
    name = value[key]
    member = next((m for m in scan.members if m.key in syntax.arguments), None)
    if member is None:
        return name, "{}"
    arguments = text[member.start : member.end]
    if not isinstance(_loads(arguments), dict):
        return f"the arguments of {name!r} are no JSON object"
    return name, arguments.strip()


def _dumps(value: Any) -> str:
    """JSON text that can be sent: a lone surrogate stays an escape.

    Raises:
        ValueError: a number has no JSON spelling.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False)
    return text


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None


class NamedJsonReader:
    """See `NamedJson`."""

    def __init__(self, syntax: NamedJson) -> None:
        self._syntax = syntax
        self._header = _Until(syntax.after) if syntax.after else None
        self._bare: list[str] = []
        self._object: _Object | None = None
        self._found: str | None = None
        self.name: str | None = None
        self.arguments: list[str] = []

    def feed(self, chunk: str) -> Read:
        """See Reader."""
        read = Read()
        if self._object is None:
            self._feed_header(chunk, read)
        if self._object is not None and not read.wrong and read.taken < len(chunk):
            rest = chunk[read.taken :]
            state, taken = self._object.feed(rest)
            read.taken += taken
            self.arguments.append(rest[:taken])
            if state is State.WRONG:
                read.wrong = f"the arguments of {self.name!r} are no JSON object"
            elif state is State.DONE:
                assert self.name is not None
                text = self._object.text
                if isinstance(_loads(text), dict):
                    read.calls.append((self.name, text.strip()))
                    read.done = True
                else:
                    read.wrong = f"the arguments of {self.name!r} are no JSON object"
        return read

    def _feed_header(self, chunk: str, read: Read) -> None:
        header: str | None
        if self._header is not None:
            header, read.taken = self._header.feed(chunk)
            size = self._header.size
        else:
            at = chunk.find("{")
            header = None if at < 0 else "".join(self._bare) + chunk[:at]
            read.taken = len(chunk) if at < 0 else at
            self._bare.append(chunk[: read.taken])
            size = sum(map(len, self._bare))
        if header is None:
            if size > MAX_HEADER:
                read.wrong = "no function's name ends here"
            return
        name = header.strip().removeprefix(self._syntax.before)
        if self._syntax.id_mark:
            name = name.split(self._syntax.id_mark)[0]
        self.name = name.strip()
        self._object = _Object()


class TaggedReader:
    """See `TaggedCall`.

    Args:
        syntax: the layout.
        end: the mark that closes the call where the syntax has none.
        schemas: the tools' parameters, by name: they say which values are no strings.
    """

    def __init__(self, syntax: TaggedCall, end: str, schemas: Mapping[str, Any]) -> None:
        self._syntax = syntax
        self._close = syntax.end or end
        self._schemas = schemas
        self._window = ""
        self._until: _Until | None = None
        self._then: Callable[[str], None] = self._named
        self._key = ""
        self._values: dict[str, Any] = {}
        self._scan: JsonScan | None = None  # of a value that goes on behind a closing mark
        self._pieces: list[str] = []
        self.name: str | None = None
        self.arguments: list[str] = []
        self._expected: tuple[str, ...] = (syntax.name[0],)
        if not syntax.name[0]:
            self._read_until(syntax.name[1], self._named)

    def _read_until(self, mark: str, then: Callable[[str], None]) -> None:
        self._expected, self._until, self._then = (), _Until(mark), then

    def feed(self, chunk: str) -> Read:
        """See Reader."""
        read = Read()
        while read.taken < len(chunk) and not read.wrong and not read.done:
            if self._until is not None:
                text, taken = self._until.feed(chunk[read.taken :])
                read.taken += taken
                if text is not None:
                    self._then(text)
                elif self.name is None and self._until.size > MAX_HEADER:
                    read.wrong = "no function's name ends here"
            else:
                self._step(chunk, read)
        return read

    def _step(self, chunk: str, read: Read) -> None:
        """One character toward one of the expected marks; white space before them is skipped."""
        char = chunk[read.taken]
        if not self._window and char.isspace():
            read.taken += 1
            return
        window = self._window + char
        if not any(mark.startswith(window) for mark in self._expected):
            read.wrong = f"{' or '.join(self._expected)} was expected where {window[:40]!r} stands"
            return
        read.taken += 1
        self._window = window
        if window in self._expected:
            self._window = ""
            self._met(window, read)

    def _met(self, mark: str, read: Read) -> None:
        syntax = self._syntax
        if mark == self._close and self.name is not None:
            read.calls.append((self.name, _dumps(self._values)))
            read.done = True
        elif self.name is None:
            self._read_until(syntax.name[1], self._named)
        elif mark == syntax.key[0]:
            self._read_until(syntax.key[1], self._keyed)
        else:
            self._read_until(syntax.value[1], self._valued)

    def _named(self, text: str) -> None:
        self.name = text.strip()
        self._await_next()

    def _await_next(self) -> None:
        self._expected, self._until = (self._syntax.key[0], self._close), None

    def _keyed(self, text: str) -> None:
        self._key = text.strip()
        if self._syntax.value[0]:
            self._expected, self._until = (self._syntax.value[0],), None
        else:
            self._read_until(self._syntax.value[1], self._valued)

    def _valued(self, text: str) -> None:
        schema = _property(self._schemas.get(self.name or ""), self._key)
        if self._within_json(text, schema):
            self._read_until(self._syntax.value[1], self._valued)
            return
        text, self._scan, self._pieces = "".join([*self._pieces, text]), None, []
        if self._syntax.padded:
            text = text.removeprefix("\n").removesuffix("\n")
        self._values[self._key] = typed(text, schema)
        self._await_next()

    def _within_json(self, text: str, schema: object) -> bool:
        """The closing mark that ended `text` stands inside a JSON value, and is part of it."""
        if is_text(schema):
            return False
        if self._scan is None:
            if text.lstrip()[:1] not in ("{", "[", '"'):
                return False
            self._scan = JsonScan()
            # Inside a list a string alone is a value too.
            self._scan.feed("[")
        mark = self._syntax.value[1]
        state, _ = self._scan.feed(text)
        if state is not State.MORE or not self._scan.inside:
            return False
        if self._scan.feed(mark)[0] is not State.MORE:
            return False
        self._pieces += [text, mark]
        return True


def _property(schema: object, key: str) -> Any:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return resolved(schema, properties.get(key) if isinstance(properties, Mapping) else None)


class PythonReader:
    """See `PythonCalls`: up to the closing bracket or, unbracketed, to the format's end mark; what
    stands in quotes ends nothing."""

    def __init__(self, syntax: PythonCalls, end: str) -> None:
        self._bracketed = syntax.bracketed
        self._end = end
        self._parts: list[str] = []
        self._size = 0
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._spelled = ""  # how much of the end mark the last characters spell
        self.name: str | None = None
        self.arguments: list[str] = []

    def feed(self, chunk: str) -> Read:
        """See Reader."""
        read = Read()
        for char in chunk:
            read.taken += 1
            if self._ends(char):
                break
        else:
            self._parts.append(chunk)
            self._size += read.taken
            if self._size > MAX_PYTHON:
                read.wrong = f"the calls are longer than {MAX_PYTHON} characters"
            return read
        self._parts.append(chunk[: read.taken])
        text = "".join(self._parts)
        found = python_calls(text if self._bracketed else text.removesuffix(self._end))
        if isinstance(found, str):
            read.wrong, read.plain = found, self._bracketed
        else:
            read.calls += found
            read.done = True
        return read

    def _ends(self, char: str) -> bool:
        """The calls end with this character."""
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
            return False
        if not self._bracketed:
            self._spelled += char
            while not self._end.startswith(self._spelled):
                self._spelled = self._spelled[1:]
            if self._spelled == self._end:
                return True
        if char in "\"'":
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1
            return self._bracketed and self._depth <= 0
        return False


def python_calls(text: str) -> list[tuple[str, str]] | str:
    """Calls written in Python, as (name, arguments' JSON text), or why they are none.

    Nothing is run: the text is parsed, and arguments must be literals.
    """
    try:
        body = ast.parse(text.strip(), mode="eval").body
        calls: Sequence[ast.expr] = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
        return [_python_call(call) for call in calls]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        return f"the calls cannot be read: {str(error).splitlines()[0][:120] if str(error) else ''}"


class _Literals(ast.NodeTransformer):
    """JSON's spellings of constants, which models mix with Python's."""

    _JSON: ClassVar = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._JSON[node.id]) if node.id in self._JSON else node


def _python_call(call: ast.expr) -> tuple[str, str]:
    if not isinstance(call, ast.Call):
        raise ValueError("a function call was expected")
    if call.args or any(k.arg is None for k in call.keywords):
        raise ValueError("arguments must be given by name")
    values = {str(k.arg): ast.literal_eval(_Literals().visit(k.value)) for k in call.keywords}
    return ast.unparse(call.func), _dumps(values)


def ends_itself(syntax: CallSyntax | None) -> bool:
    """A reader of this syntax takes the format's end mark as well."""
    if isinstance(syntax, PythonCalls):
        return not syntax.bracketed
    return isinstance(syntax, TaggedCall) and not syntax.end


def reader_of(syntax: CallSyntax, end: str, schemas: Mapping[str, Any]) -> Reader:
    """A reader at the beginning of a body."""
    if isinstance(syntax, JsonCall):
        return JsonCallReader(syntax)
    if isinstance(syntax, NamedJson):
        return NamedJsonReader(syntax)
    if isinstance(syntax, TaggedCall):
        return TaggedReader(syntax, end, schemas)
    return PythonReader(syntax, end)
