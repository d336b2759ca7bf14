"""Parses calls written in Python, up to the closing bracket or the format's end mark.

No code is executed. This module parses the structure (names, keywords, ends of arguments) because
models write text that Python's grammar rejects: keywords and hyphenated names as names of functions
and arguments, line breaks within quotes. Each argument's value is then parsed as a literal.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from tidemill.text.parsers.format import PythonCalls
from tidemill.text.parsers.reading import Read
from tidemill.text.parsers.values import dumps

MAX_PYTHON = 200_000
"""Maximum characters of Python calls."""

_ENDS = ",)]}:"
# A quote ends a string only before one of these, because models write 'it's'. An unclosed string
# extends to the end, or each quote in it would start another search.
_STRING = "|".join(
    rf"{q}{q}{q}(?:\\.|[^\\])*?(?:{q}{q}{q}|(\\?\Z))"
    rf"|{q}(?:\\.|[^{q}\\]|{q}(?!\s*(?:[,)\]}}:]|$)))*(?:{q}|(\\?\Z))"
    for q in "\"'"
)
_TOKEN = re.compile(rf"(?P<string>{_STRING})|(?P<open>[(\[{{])|(?P<close>[)\]}}])|,", re.DOTALL)
_STRINGS = re.compile(_STRING, re.DOTALL)
# Text to escape within quotes; within triple quotes, only backslashes that escape nothing.
_WITHIN = {q: re.compile(rf"\\.|{q}|\r|\n", re.DOTALL) for q in "\"'"}
_WITHIN[""] = re.compile(r"\\.", re.DOTALL)
_ESCAPES = frozenset("\n\\'\"abfnrtv01234567xNuU")
_CALL = re.compile(r"\s*([\w.-]+)\s*\(")
_KEYWORD = re.compile(r"\s*([\w-]+)\s*=(?!=)")
_LIKELY = re.compile(r"\s*(?:\[\s*)?([\w.-]{1,128})\(")


class PythonReader:
    """See `PythonCalls`; quoted brackets and end marks are ignored.

    Args:
        syntax: the layout.
        end: the mark that ends calls without brackets.
    """

    def __init__(self, syntax: PythonCalls, end: str) -> None:
        self._bracketed = syntax.bracketed
        self._end = end
        self._parts: list[str] = []
        self._size = 0
        self._depth = 0
        self._quote = ""
        self._inside = ""  # the last characters since the quote was opened, three at most
        self._escaped = False
        self._closing = False  # the last quote ends the string if a character of _ENDS follows
        self._empty = False  # the string before that quote is empty
        self._spelled = ""  # the prefix of the end mark that the last characters match
        self.name: str | None = None
        self.arguments: list[str] = []

    @property
    def likely(self) -> str | None:
        """See Reader."""
        found = _LIKELY.match("".join(self._parts))
        return found[1] if found is not None else None

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
        if self._quote and self._quoted(char):
            return False
        if not self._bracketed:
            self._spelled += char
            while not self._end.startswith(self._spelled):
                self._spelled = self._spelled[1:]
            if self._spelled == self._end:
                return True
        if char in "\"'":
            self._quote, self._inside = char, ""
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1
            return self._bracketed and self._depth <= 0
        return False

    def _quoted(self, char: str) -> bool:
        """Handle a character within quotes; False if it follows them."""
        if self._closing:
            if self._empty and char == self._quote:
                self._quote, self._closing, self._inside = char * 3, False, ""
                return True
            self._empty = False
            if char.isspace():
                return True
            self._closing = False
            if char in _ENDS:
                self._quote = ""
                return False
        if self._escaped:
            self._escaped, self._inside = False, "x"
        elif char == "\\":
            self._escaped = True
        elif len(self._quote) == 3:
            self._inside = (self._inside + char)[-3:]
            if self._inside == self._quote:
                self._quote = ""
        elif char == self._quote:
            self._closing, self._empty = True, not self._inside
        else:
            self._inside = "x"
        return True


def python_calls(text: str) -> list[tuple[str, str]] | str:
    """Parse Python calls to (name, arguments' JSON text) pairs, or return the error."""
    text = text.strip()
    if text[:1] + text[-1:] in ("[]", "()"):
        text = text[1:-1]
    try:
        calls = [_python_call(call) for call in _split(text)]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else ""
        return f"the calls cannot be parsed: {reason}"
    return calls or "no function is called"


def _split(text: str) -> Iterator[str]:
    """Split at commas that are neither within quotes nor within brackets."""
    start = depth = 0
    for token in _TOKEN.finditer(text):
        if token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
        elif not token["string"] and not depth:
            yield text[start : token.start()]
            start = token.end()
    if text[start:].strip():
        yield text[start:]


def _python_call(text: str) -> tuple[str, str]:
    head, body = _CALL.match(text), text.rstrip()
    if head is None or not body.endswith(")"):
        raise ValueError("a function call was expected")
    values: dict[str, Any] = {}
    for argument in _split(body[head.end() : -1]):
        key = _KEYWORD.match(argument)
        if key is None:
            raise ValueError("arguments must be given by name")
        values[key[1]] = literal(argument[key.end() :])
    return head[1], dumps(values)


def literal(text: str) -> Any:
    """Parse a Python literal; JSON's constants and raw line breaks in quotes are accepted too.

    Raises:
        SyntaxError, ValueError, TypeError, RecursionError, MemoryError: not a literal.
    """
    plain = _STRINGS.sub(_plain, text.strip())
    return ast.literal_eval(_Literals().visit(ast.parse(plain, mode="eval").body))


def _plain(found: re.Match[str]) -> str:
    """Rewrite a quoted string to a valid Python literal: line breaks and quotes escaped."""
    text = found[0]
    if found.lastindex is not None:  # unclosed
        return text
    size = 3 if text[:3] in ('"""', "'''") else 1
    inside = _WITHIN[text[0] if size == 1 else ""].sub(_spelled, text[size:-size])
    return text[:size] + inside + text[:size]


def _spelled(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == "\\":
        return text if text[1:] in _ESCAPES else "\\" + text
    return {"\r": "\\r", "\n": "\\n"}.get(text, "\\" + text)


class _Literals(ast.NodeTransformer):
    """Converts JSON's constants, which models mix with Python's."""

    _JSON: ClassVar = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._JSON[node.id]) if node.id in self._JSON else node
