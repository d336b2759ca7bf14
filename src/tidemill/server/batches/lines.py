"""A batch's input: JSON objects, one a line, checked line by line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidemill.store.batches import Line

MAX_LINES = 50_000
MAX_LINE_BYTES = 16 * 2**20
MAX_ERRORS = 100
"""Of one file; the rest would say the same."""

MAX_CUSTOM_ID = 512


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None


_DECODER = msgspec.json.Decoder(_Line)
_BODY = msgspec.json.Decoder(_Body)


@dataclass(slots=True)
class LineReader:
    """Reads a file's lines from its chunks, and checks them.

    Attributes:
        endpoint: what every line must ask.
        errors: what is wrong, in OpenAI's shape: code, message, param, line (from 1).
        count: lines that were read.
    """

    endpoint: str
    errors: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0
    _rest: bytes = b""
    _number: int = 0
    _known: set[str] = field(default_factory=set)

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The good lines that a chunk completes."""
        pieces = (self._rest + chunk).split(b"\n")
        self._rest = pieces.pop()
        if len(self._rest) > MAX_LINE_BYTES:
            self._wrong("line_too_long", f"a line has more than {MAX_LINE_BYTES} bytes", 1)
            self._rest = b""
        for piece in pieces:
            yield from self._read(piece)

    def end(self) -> Iterator[Line]:
        """The last line, where no line end follows it."""
        rest, self._rest = self._rest, b""
        yield from self._read(rest)
        if not self.count and not self.errors:
            self._wrong("empty_file", "the file has no lines: write one JSON object a line", 0)

    def _read(self, text: bytes) -> Iterator[Line]:
        self._number += 1
        if self._number == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")
        text = text.strip()
        if not text or len(self.errors) >= MAX_ERRORS:
            return
        self.count += 1
        if self.count > MAX_LINES:
            if self.count == MAX_LINES + 1:
                self._wrong("too_many_lines", f"the file has more than {MAX_LINES} lines")
            return
        try:
            line = _DECODER.decode(text)
            body = _BODY.decode(line.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._wrong("invalid_json_line", f"the line is not as it should be: {error}")
            return
        problem = self._problem(line, body)
        if problem is not None:
            self._wrong(*problem)
            return
        self._known.add(line.custom_id)
        yield Line(self._number, line.custom_id, bytes(line.body))

    def _problem(self, line: _Line, body: _Body) -> tuple[str, str, int, str] | None:
        if not 1 <= len(line.custom_id) <= MAX_CUSTOM_ID:
            return _at("custom_id", f"custom_id must have 1 to {MAX_CUSTOM_ID} characters")
        if line.custom_id in self._known:
            shown = line.custom_id[:64]
            return _at("custom_id", f"custom_id {shown!r} appears twice", "duplicate_custom_id")
        if line.method != "POST":
            return _at("method", f"method must be POST, got {line.method[:16]!r}", "invalid_method")
        if line.url != self.endpoint:
            shown = line.url[:64]
            return _at("url", f"url must be {self.endpoint}, got {shown!r}", "invalid_url")
        if body.stream:
            return _at("body.stream", "stream: an answer in a batch is no stream; leave it out")
        return None

    def _wrong(self, code: str, message: str, ahead: int = 0, param: str | None = None) -> None:
        line = self._number + ahead
        self.errors.append({"code": code, "message": message, "param": param, "line": line or None})


def _at(param: str, message: str, code: str = "invalid_value") -> tuple[str, str, int, str]:
    return code, message, 0, param
