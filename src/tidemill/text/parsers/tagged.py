"""Parses a call whose name and parameters are between marks; see `TaggedCall`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemill.text.parsers.format import TaggedCall
from tidemill.text.parsers.json_scan import JsonScan, State
from tidemill.text.parsers.reading import MAX_HEADER, Read, Until
from tidemill.text.parsers.values import dumps, is_text, property_of, typed


class TaggedReader:
    """Reads one call.

    Args:
        syntax: the layout.
        end: the mark that closes the call if the syntax has none.
        schemas: the tools' parameters, by name; they determine the values' types.
    """

    def __init__(self, syntax: TaggedCall, end: str, schemas: Mapping[str, Any]) -> None:
        self._syntax = syntax
        self._close = syntax.end or end
        self._schemas = schemas
        self._window = ""
        self._until: Until | None = None
        self._then: Callable[[str], None] = self._named
        self._key = ""
        self._kind = ""  # value of the parameter's kind attribute
        self._ended = False  # the call's closing mark was found
        self._values: dict[str, Any] = {}
        self._scan: JsonScan | None = None  # of a value that contains the closing mark
        self._pieces: list[str] = []
        self._quoted = False  # the value is between `quotes`
        self._opened = 0  # nested elements that have the parameter's name
        self.name: str | None = None
        self.arguments: list[str] = []
        self._expected: tuple[str, ...] = (syntax.name[0],)
        if syntax.recipient:
            self._read_until(self._addressed, syntax.recipient)
        elif not syntax.name[0]:
            self._read_name()

    @property
    def likely(self) -> str | None:
        """See Reader."""
        return self.name

    def _read_until(self, then: Callable[[str], None], *marks: str) -> None:
        self._expected, self._until, self._then = (), Until(*marks), then

    def _read_name(self) -> None:
        # Models omit the mark after a name, before the first parameter or without parameters.
        syntax = self._syntax
        self._read_until(self._named, syntax.name[1], syntax.key[0], self._close)

    def feed(self, chunk: str) -> Read:
        """See Reader."""
        read = Read()
        while read.taken < len(chunk) and not read.wrong and not read.done:
            if self._until is not None:
                text, taken = self._until.feed(chunk[read.taken :])
                read.taken += taken
                if text is not None:
                    self._then(text)
                    self._finish(read)
                elif self.name is None and self._until.size > MAX_HEADER:
                    read.wrong = "the function name is not terminated"
            else:
                self._step(chunk, read)
        return read

    def _finish(self, read: Read) -> None:
        if self._ended:
            assert self.name is not None
            read.calls.append((self.name, dumps(self._values)))
            read.done = True

    def _step(self, chunk: str, read: Read) -> None:
        """Match one character of an expected mark; white space before marks is skipped."""
        char = chunk[read.taken]
        if not self._window and char.isspace():
            read.taken += 1
            return
        window = self._window + char
        if not any(mark.startswith(window) for mark in self._expected):
            read.wrong = f"expected {' or '.join(self._expected)}, found {window[:40]!r}"
            return
        read.taken += 1
        self._window = window
        if window in self._expected:
            self._window = ""
            self._met(window)
            self._finish(read)

    def _met(self, mark: str) -> None:
        syntax = self._syntax
        if mark == self._close and self.name is not None:
            self._ended = True
        elif self.name is None:
            self._read_name()
        elif mark == syntax.key[0]:
            self._read_until(self._keyed, syntax.kind.after if syntax.kind else syntax.key[1])
        else:
            self._read_value()

    def _addressed(self, _: str) -> None:
        """The recipient header has ended; the call repeats the name."""
        if self._syntax.name[0]:
            self._expected, self._until = (self._syntax.name[0],), None
        else:
            self._read_name()

    def _named(self, text: str) -> None:
        assert self._until is not None
        mark = self._until.mark
        if not text.strip() and not mark.strip():  # the name is on the next line
            self._read_name()
            return
        self.name = text.strip()
        if mark in (self._syntax.key[0], self._close):
            self._met(mark)
        elif self._syntax.index:
            self._read_until(self._await_next, self._syntax.index)
        else:
            self._await_next()

    def _await_next(self, _: str = "") -> None:
        # If the closing mark starts with the key's mark, a key is read first: see `_keyed`.
        first = self._syntax.key[0]
        close = () if self._close.startswith(first) else (self._close,)
        self._expected, self._until = (first, *close), None

    def _keyed(self, text: str) -> None:
        syntax = self._syntax
        self._kind = ""
        if syntax.key[0] + text + syntax.key[1] == self._close:
            self._ended = True
            return
        if syntax.kind is not None:
            text, _, self._kind = text.partition(syntax.key[1] + syntax.kind.before)
            text = text.removesuffix(syntax.key[1])
        self._key = text.strip()
        if syntax.value[0]:
            self._expected, self._until = (syntax.value[0],), None
        else:
            self._read_value()

    def _read_value(self) -> None:
        syntax = self._syntax
        close = syntax.value[1] + (self._key + syntax.echoed if syntax.echoed else "")
        self._read_until(self._valued, close)

    def _valued(self, text: str) -> None:
        assert self._until is not None
        mark = self._until.mark
        schema = property_of(self._schemas.get(self.name or ""), self._key)
        if self._goes_on(text, mark, schema):
            self._read_until(self._valued, mark)
            return
        text, self._scan, self._pieces = "".join([*self._pieces, text]), None, []
        self._values[self._key] = self._value(text, schema)
        self._await_next()

    def _value(self, text: str, schema: Any) -> Any:
        syntax = self._syntax
        left, right = syntax.quotes
        if left and text.strip().startswith(left):
            return text.strip()[len(left) : -len(right)]
        if syntax.padded:
            text = text.removeprefix("\n").removesuffix("\n")
        if syntax.echoed and not is_text(schema):
            return element(text, schema, syntax)
        if syntax.kind is None or not self._kind:
            return typed(text, schema)
        return text if self._kind == syntax.kind.text else typed(text, {"type": _OTHERS})

    def _goes_on(self, text: str, mark: str, schema: object) -> bool:
        """The closing mark after `text` is part of the value."""
        syntax = self._syntax
        left, right = syntax.quotes
        if not self._pieces:
            self._quoted = bool(left) and text.lstrip().startswith(left)
            self._opened = 0
        if self._quoted:
            inside = not text.rstrip().endswith(right)
        elif syntax.echoed:
            self._opened += text.count(syntax.key[0] + self._key + syntax.key[1])
            inside = self._opened > len(self._pieces) // 2 and not is_text(schema)
        elif self._kind and syntax.kind is not None:
            inside = self._kind != syntax.kind.text and self._within_json(text, mark)
        else:
            inside = not is_text(schema) and self._within_json(text, mark)
        if inside:
            self._pieces += [text, mark]
        return inside

    def _within_json(self, text: str, mark: str) -> bool:
        if self._scan is None:
            if text.lstrip()[:1] not in ("{", "[", '"'):
                return False
            self._scan = JsonScan()
            # The scan needs a container: within a list, a plain string is a value too.
            self._scan.feed("[")
        state, _ = self._scan.feed(text)
        if state is not State.MORE or not self._scan.inside:
            return False
        return self._scan.feed(mark)[0] is State.MORE


_OTHERS = ["object", "array", "number", "boolean", "null"]


def element(text: str, schema: Any, syntax: TaggedCall) -> Any:
    """Parse a value that may be nested elements: an object's members, or a list's items.

    Args:
        text: the text between the marks.
        schema: of the value.
        syntax: the layout, with `echoed`.
    """
    begin = syntax.key[0]
    if not text.strip():
        kinds = schema.get("type") if isinstance(schema, Mapping) else None
        return [] if kinds == "array" else {} if kinds == "object" else typed(text, schema)
    if not text.lstrip().startswith(begin):
        return typed(text, schema)
    found: list[tuple[str, str]] = []
    at = text.index(begin)
    while at >= 0:
        end = text.find(syntax.key[1], at + len(begin))
        name = text[at + len(begin) : end]
        again, close = begin + name + syntax.key[1], syntax.value[1] + name + syntax.echoed
        start = at + len(again)
        stop = text.find(close, start)
        while stop >= 0 and text.count(again, start, stop) > text.count(close, start, stop):
            stop = text.find(close, stop + 1)
        if end < 0 or stop < 0:
            return typed(text, schema)
        found.append((name, text[start:stop]))
        at = text.find(begin, stop + len(close))
    items = schema.get("items") if isinstance(schema, Mapping) else None
    listed = items is not None or (isinstance(schema, Mapping) and schema.get("type") == "array")
    if listed or (len({n for n, _ in found}) == 1 and found[0][0] == "item"):
        return [element(inner, items if items is not None else {}, syntax) for _, inner in found]
    return {name: element(inner, property_of(schema, name), syntax) for name, inner in found}
