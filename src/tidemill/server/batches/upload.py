"""Multipart bodies, read as they arrive: fields whole, a file in chunks of one size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from tidemill.server.errors import reject

MAX_FIELDS = 16
MAX_FIELD_BYTES = 1024

OnChunk = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class Form:
    """What a multipart body had.

    Attributes:
        fields: by name.
        filename: of the file; None: there was none.
        size: bytes of the file.
    """

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    size: int = 0


class _Parts:
    """What the parser reports; `take` gives it in order."""

    def __init__(self, boundary: bytes) -> None:
        self._header, self._value = b"", b""
        self._name: str | None = None
        self._events: list[tuple[str, str | None, bytes]] = []
        self.ended = False
        self.parser = MultipartParser(
            boundary,
            {
                "on_header_field": self._on_field,
                "on_header_value": self._on_value,
                "on_header_end": self._on_header,
                "on_part_begin": self._on_part,
                "on_part_data": self._on_data,
                "on_headers_finished": self._on_headers,
                "on_end": self._on_end,
            },
        )
        self._filename: str | None = None

    def _on_part(self) -> None:
        self._name = self._filename = None

    def _on_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            name, filename = options.get(b"name"), options.get(b"filename")
            self._name = None if name is None else name.decode("utf-8", "replace")
            if filename is not None:
                self._filename = filename.decode("utf-8", "replace")
        self._header, self._value = b"", b""

    def _on_headers(self) -> None:
        kind = "field" if self._filename is None else "file"
        self._events.append((kind, self._name, (self._filename or "").encode()))

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(("data", self._name, data[start:end]))

    def _on_end(self) -> None:
        self.ended = True

    def take(self) -> list[tuple[str, str | None, bytes]]:
        """What came since the last call: kind, name of the part, data or name of the file."""
        events, self._events = self._events, []
        return events


async def read_form(
    request: Request, on_chunk: OnChunk, *, chunk: int, most: int, idle: float
) -> Form:
    """Read a body with one file in the part ``file``.

    Args:
        request: whose body it is.
        on_chunk: awaited for each chunk of the file in order; all but the last have `chunk` bytes.
        chunk: see there.
        most: bytes that the file may have.
        idle: seconds in which something must arrive.

    Raises:
        Rejection: naming the part.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise reject(415, "Content-Type must be multipart/form-data with a boundary")
    parts = _Parts(options[b"boundary"])
    form, buffer, current = Form(), bytearray(), ""
    try:
        async for data in _arriving(request, idle):
            parts.parser.write(data)
            for kind_of, name, value in parts.take():
                if kind_of != "data":
                    current = _begin(form, kind_of, name, value)
                elif current == "file":
                    form.size += len(value)
                    if form.size > most:
                        raise reject(
                            413, f"file has more than {most} bytes; send less at once", param="file"
                        )
                    buffer += value
                else:
                    _extend(form, current, value)
            while len(buffer) >= chunk:
                await on_chunk(bytes(buffer[:chunk]))
                del buffer[:chunk]
    except MultipartParseError as error:
        raise reject(400, f"the body is not valid multipart/form-data: {error}") from None
    if not parts.ended:
        raise reject(400, "the body ends before its last part does")
    if form.filename is None:
        raise reject(400, "file is required: a part with a filename", param="file")
    if buffer:
        await on_chunk(bytes(buffer))
    return form


def _begin(form: Form, kind: str, name: str | None, filename: bytes) -> str:
    if name is None:
        raise reject(400, "a part of the body has no name")
    if kind == "file":
        if name != "file" or form.filename is not None:
            raise reject(400, f"{name[:64]} is no file here; send one, as file", param=name[:64])
        form.filename = filename.decode()[-255:] or "file"
        return "file"
    if name == "file":
        raise reject(400, "file must be a part with a filename", param="file")
    if name in form.fields or len(form.fields) >= MAX_FIELDS:
        raise reject(400, f"{name[:64]} appears twice, or is one too many", param=name[:64])
    form.fields[name] = ""
    return name


def _extend(form: Form, name: str, value: bytes) -> None:
    text = form.fields[name] + value.decode("utf-8", "replace")
    if len(text) > MAX_FIELD_BYTES:
        raise reject(400, f"{name[:64]} has more than {MAX_FIELD_BYTES} bytes", param=name[:64])
    form.fields[name] = text


async def _arriving(request: Request, idle: float) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(idle):
                data = await anext(stream, None)
        except TimeoutError:
            raise reject(
                408, f"nothing more of the body arrived within {idle:g} s", code="timeout"
            ) from None
        except ClientDisconnect:
            raise reject(400, "the client closed the connection before the body ended") from None
        if data is None:
            return
        if data:
            yield data
