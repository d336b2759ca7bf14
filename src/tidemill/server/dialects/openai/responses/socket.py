"""GET /v1/responses as a WebSocket: OpenAI's WebSocket mode.

A client sends `response.create` events and gets the events of each response, one after the other.
Each is a request of its own inside the server (`transport.inner`): it is admitted, bounded and
recorded like one over HTTP. The latest response is kept with the connection, so that the next can
continue it although it is not stored (`store: false`).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.base.clock import monotonic
from tidemill.server.access.auth import Principal, principal_of
from tidemill.server.admission.bodies import Bodies, Hold
from tidemill.server.context import ServerContext
from tidemill.server.dialects.openai.responses.store import Recent
from tidemill.server.errors import reject
from tidemill.server.transport.inner import EventData, ask
from tidemill.server.transport.websocket import Code, WebSocket, accept_headers

CONNECTION_SECONDS = 3600.0
"""How long a connection may last, as OpenAI's."""

CREATE = "response.create"

UNCOUNTED_BYTES = 2**14
"""Of messages that arrive or wait."""

_NOT_PASSED = frozenset(
    (
        *("connection", "upgrade", "host", "content-length", "content-type", "transfer-encoding"),
        *("origin", "x-request-id", "x-resumable-stream", "last-event-id", "expect"),
    )
)
"""Headers of the handshake that are not those of the requests; nor is what begins with
sec-websocket."""


def connect(context: ServerContext, request: Request) -> Response:
    """Make the connection a WebSocket.

    Raises:
        Rejection: it is no handshake, or the connection cannot become one.
    """
    headers = accept_headers(request.scope["headers"])
    become = request.scope.get("extensions", {}).get("tidemill.websocket")
    if become is None:
        raise reject(426, "WebSockets are not served on this connection; use POST")
    return _Upgraded(context, request, become, headers)


class _Upgraded(Response):
    """A response that is a conversation."""

    def __init__(
        self,
        context: ServerContext,
        request: Request,
        become: Any,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        super().__init__()
        self._context = context
        self._request = request
        self._become = become
        self._accepting = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until one side ends it."""
        socket, app = self._become(self._accepting)
        self._request.state.status = 101  # for the log of requests
        held = _Held(self._context.bodies, principal_of(self._request))
        socket.charge = held.set
        try:
            await Conversation(socket, app, self._request).run()
        except Exception:
            socket.close(Code.INTERNAL, "internal error; the server's log has the details")
            raise
        finally:
            socket.close()
            held.set(0)


class _Held:
    """What a connection holds of the memory for bodies.

    Args:
        bodies: the bound.
        principal: whose share it is.
    """

    def __init__(self, bodies: Bodies, principal: Principal) -> None:
        self._bodies = bodies
        self._principal = principal
        self._hold: Hold | None = None

    def set(self, size: int) -> None:
        """So many bytes are held now; a short message is not counted.

        Raises:
            Rejection: 429.
        """
        if self._hold is not None and size < self._hold.size:
            self._hold.close()
            self._hold = None
        if size > UNCOUNTED_BYTES:
            self._hold = self._hold or self._bodies.hold(self._principal)
            self._hold.need(size)


class Conversation:
    """The turns of one connection.

    Args:
        socket: the connection.
        app: the whole application.
        request: the handshake.
    """

    def __init__(self, socket: WebSocket, app: ASGIApp, request: Request) -> None:
        self._socket = socket
        self._app = app
        self._recent = Recent()
        self._client = request.scope.get("client")
        self._principal = principal_of(request)
        self._headers = [
            (name, value)
            for name, value in request.scope["headers"]
            if name.decode("latin-1") not in _NOT_PASSED and not name.startswith(b"sec-websocket")
        ]
        self._ends = monotonic() + CONNECTION_SECONDS

    async def run(self) -> None:
        """Answer until there is nothing more to answer."""
        socket = self._socket
        while True:
            try:
                async with asyncio.timeout(max(0.0, self._ends - monotonic())):
                    message = await socket.receive()
            except TimeoutError:
                await self._fail(
                    400,
                    "websocket_connection_limit_reached",
                    f"a connection lasts {CONNECTION_SECONDS / 60:g} minutes; open a new one",
                )
                return
            if message is None:
                socket.close(Code.GOING_AWAY, "the server stops")
                return
            socket.answering = True
            await self._answer(message)
            socket.answering = False

    async def _answer(self, message: str) -> None:
        try:
            # A large one takes its time, and others stream meanwhile.
            event = await asyncio.to_thread(json.loads, message)
        except (ValueError, RecursionError) as error:
            await self._fail(400, "invalid_json", f"the event is not valid JSON: {error}")
            return
        kind = event.get("type") if isinstance(event, dict) else None
        if kind != CREATE:
            shown = kind[:64] if isinstance(kind, str) else "none"
            await self._fail(
                400,
                "unsupported",
                f"events of the type {CREATE} are served, and this one's type is {shown!r}",
                param="type",
            )
            return
        stream_id = event.pop("stream_id", None)
        if stream_id is not None and not isinstance(stream_id, str):
            await self._fail(400, "invalid_type", "stream_id must be a string", param="stream_id")
            return
        await self._create(event, stream_id)

    async def _create(self, event: dict[str, Any], stream_id: str | None) -> None:
        body = {name: value for name, value in event.items() if name != "type"}
        generate = body.pop("generate", None)
        if body.pop("background", None):
            message = "background: a WebSocket's responses are not in the background; use POST"
            await self._fail(400, "unsupported", message, stream_id, param="background")
            return
        if generate is not None and not isinstance(generate, bool):
            message = "generate must be true or false"
            await self._fail(400, "invalid_type", message, stream_id, param="generate")
            return
        data = EventData()

        async def pass_on(part: bytes) -> None:
            for one in data.feed(part):
                await self._socket.send(_labelled(one, stream_id))

        answer = await ask(
            self._app,
            "POST",
            "/v1/responses",
            await asyncio.to_thread(msgspec.json.encode, {**body, "stream": True}),
            headers=[*self._headers, (b"content-type", b"application/json")],
            state={
                "principal": self._principal,
                "recent": self._recent,
                "warms": generate is False,
            },
            client=self._client,
            gone=self._socket.lost,
            on_part=pass_on,
        )
        if answer.status != 200:
            self._recent.forget(body.get("previous_response_id"))
            error = json.loads(answer.body)["error"]
            retry = answer.headers.get("retry-after")
            if retry is not None:
                error["headers"] = {"Retry-After": retry}
            event = {"type": "error", "status": answer.status, "error": error}
            await self._socket.send(_labelled(msgspec.json.encode(event), stream_id))

    async def _fail(
        self,
        status: int,
        code: str,
        message: str,
        stream_id: str | None = None,
        *,
        param: str | None = None,
    ) -> None:
        kind = "invalid_request_error"
        error = {"type": kind, "code": code, "message": message, "param": param}
        event = {"type": "error", "status": status, "error": error}
        await self._socket.send(_labelled(msgspec.json.encode(event), stream_id))


def _labelled(event: bytes, stream_id: str | None) -> bytes:
    """An event with the label of the request that it answers."""
    if stream_id is None:
        return event
    return event[:-1] + b',"stream_id":' + msgspec.json.encode(stream_id) + b"}"
