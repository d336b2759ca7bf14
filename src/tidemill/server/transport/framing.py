"""How the parts of a streamed answer are delimited on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Framing:
    """One way to stream.

    Attributes:
        content_type: of the response.
        before, after: around each part.
        keep_alive: written after long silence, since proxies close what is silent for 60 s or so;
            empty: nothing can be written that clients ignore.
        headers: further response headers.
    """

    content_type: bytes
    before: bytes
    after: bytes
    keep_alive: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def events(self) -> bool:
        """Parts are server-sent events, which may have ids."""
        return self.content_type.startswith(b"text/event-stream")

    def part(self, data: bytes) -> bytes:
        """One part, framed."""
        return self.before + data + self.after

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of a response."""
        return [(b"content-type", self.content_type), *self.headers]


_UNBUFFERED = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))

SSE = Framing(
    b"text/event-stream; charset=utf-8", b"data: ", b"\n\n", b": keep-alive\n\n", _UNBUFFERED
)
"""Server-sent events (WHATWG HTML, section 9.2); a part is the data of one event."""

NDJSON = Framing(b"application/x-ndjson", b"", b"\n", b"", _UNBUFFERED)
"""One JSON document per line."""
