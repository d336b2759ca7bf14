"""Requests that the server makes to itself: a batch's lines take the way of every other request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message

from tidemill.server.access.auth import Principal


@dataclass(slots=True)
class Answer:
    """The answer to a request.

    Attributes:
        status: of HTTP.
        headers: by name in lower case.
        body: whole.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def post(
    app: ASGIApp,
    path: str,
    body: bytes,
    principal: Principal,
    *,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> Answer:
    """Send a JSON body to a route, in the background (`EngineRequest.background`).

    Cancelling it cancels the request, as a client does that disconnects.

    Args:
        app: the server's application.
        path: of the route.
        body: JSON text.
        principal: whose request it is; no key is needed.
        headers: further ones.
    """
    answer = Answer()
    parts: list[bytes] = []
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            pairs = message.get("headers", ())
            answer.headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in pairs}
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *headers,
        ],
        "client": None,
        "server": None,
        "state": {"principal": principal, "background": True},
    }
    await app(scope, inbox.get, send)
    answer.body = b"".join(parts)
    return answer
