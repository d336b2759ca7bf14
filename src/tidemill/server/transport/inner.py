"""Requests that the server makes of itself, for clients that speak another protocol than HTTP: they
take the way of every other request, with its checks, its bounds and its record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

Headers = Iterable[tuple[bytes, bytes]]
OnPart = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class InnerAnswer:
    """The answer to a request.

    Attributes:
        status: of HTTP.
        headers: by name in lower case.
        body: whole, but for what was handed on as it came.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def streamed(self) -> bool:
        """It is a stream of events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


async def ask(
    app: ASGIApp,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    headers: Headers = (),
    state: Mapping[str, Any] | None = None,
    client: tuple[str, int] | None = None,
    gone: asyncio.Event | None = None,
    on_part: OnPart | None = None,
) -> InnerAnswer:
    """Make a request. Cancelling this cancels it, as a client does that disconnects.

    Args:
        app: the whole application.
        method, path, body, headers: of the request; the length is added.
        state: of the request: `principal` where it is authenticated already.
        client: address and port of the client.
        gone: set when the client leaves.
        on_part: takes the parts of a stream of events as they come.
    """
    answer, parts = InnerAnswer(), bytearray()
    unread = True

    async def receive() -> Message:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": body, "more_body": False}
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            pairs = message.get("headers", ())
            answer.headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in pairs}
        elif on_part is not None and answer.status == 200 and answer.streamed:
            await on_part(bytes(message.get("body", b"")))
        else:
            parts.extend(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers, (b"content-length", b"%d" % len(body))],
        "client": client,
        "server": None,
        "state": {"inner": True, **(state or {})},
    }
    await app(scope, receive, send)
    answer.body = bytes(parts)
    return answer


class EventData:
    """The data of the events of a stream, from its bytes (WHATWG HTML, section 9.2), as far as this
    server writes them: an event is one line of data between others, and ends with an empty line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that is complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        lines = (line for part in whole for line in part.split(b"\n"))
        return [line[6:] for line in lines if line.startswith(b"data: ")]
