"""A server's own models as one of the targets that its requests may get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tidemill.base.errors import TidemillError
from tidemill.gateway.config import HERE, OVERFLOW_SECONDS, RoutingConfig, TargetConfig
from tidemill.gateway.passage import noted
from tidemill.gateway.targets import Target
from tidemill.server.errors import Rejection, fail, problem_response

if TYPE_CHECKING:
    from tidemill.gateway.asked import Asked
    from tidemill.gateway.fleet import Route
    from tidemill.server.context import ServerContext

Own = Callable[["Asked"], Awaitable[Response]]
"""The server's own answer to a request, by its route's handler."""

_BUSY = frozenset({429, 503})
_OVERFLOWS = frozenset({"overloaded", "out_of_resources", "engine_unavailable", "shutting_down"})
"""Codes of refusals that say something of this server, not of the request or of its key."""


class Names(Collection[str]):
    """Names of what the server has itself; it may change."""

    def __init__(self, context: ServerContext) -> None:
        self._host = context.host

    def __contains__(self, name: object) -> bool:
        try:
            self._host.find(str(name))
        except Rejection:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._host.names)

    def __len__(self) -> int:
        return len(self._host.names)


class Here:
    """The server itself among its targets.

    Args:
        context: of the server.
        routing: how targets are chosen.

    Attributes:
        target: as routing sees it. Nothing is sent to it.
    """

    def __init__(self, context: ServerContext, routing: RoutingConfig) -> None:
        config = TargetConfig(name=HERE, url=f"http://{HERE}")
        self.target = Target(config, routing)
        self.target.listed = Names(context)
        self._host = context.host
        self._most = OVERFLOW_SECONDS
        self.permit(routing)

    def permit(self, routing: RoutingConfig) -> None:
        """How long a request may wait here although others could answer it."""
        most = routing.overflow_seconds
        self._most = OVERFLOW_SECONDS if most is None else most

    def preferred(self, model: str, now: float) -> bool:
        """Whether a request for a model that is here is answered here although others could; how
        long it would wait is noted."""
        load = self.target.load
        loaded = self._host.find(model).loaded
        if loaded is not None and loaded.served.pipeline is None:
            load.announce(now, loaded.served.admission.predicted_wait)
        return load.waiting(now) <= self._most


async def answer_here(
    route: Route,
    own: Own,
    request: Request,
    receive: Receive,
    send: Send,
    note: bytes = b"",
) -> list[Message]:
    """Have the server answer a request itself.

    Args:
        route: to itself.
        own: makes the answer.
        request: the client's.
        receive, send: of its ASGI connection.
        note: a member for the first object of the answer (see `noted`).

    Returns:
        The messages of a refusal that says that the server has no room: others may be asked, and if
        they cannot, the client gets these. Empty: the client has its answer.
    """
    watch = _Watch(route, request, send, note)
    scope: Scope = request.scope
    try:
        try:
            response = await own(route.asked)
        except (TidemillError, Rejection) as error:
            problem = fail(request, error)
            response = problem_response(problem, request.state.error_body)
        await response(scope, receive, watch.send)
    except BaseException:
        route.abandon()
        raise
    measured = getattr(request.state, "generation", None)
    route.end(0 if measured is None else measured.completion_tokens)
    if watch.held:
        request.state.problem = None
    return watch.held


class _Watch:
    """Sees what is sent: a refusal for want of room is held back."""

    def __init__(self, route: Route, request: Request, send: Send, note: bytes) -> None:
        self._route = route
        self._state = request.state
        self._send = send
        self._note = note
        self._start: Message | None = None
        self._refused = False
        self.held: list[Message] = []

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            problem = getattr(self._state, "problem", None)
            code = None if problem is None else problem.code
            self._refused = message["status"] in _BUSY and code in _OVERFLOWS
            if self._note and message["status"] == 200:
                self._start = message
                return
        elif not self._refused and message.get("body"):
            self._route.first()
            if self._note and b"{" in bytes(message["body"]):
                message = self._noted(message)
        if self._refused:
            self.held.append(message)
            return
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)
        await self._send(message)

    def _noted(self, message: Message) -> Message:
        body = noted(bytes(message["body"]), self._note)
        more = len(body) - len(message["body"])
        self._note = b""
        if self._start is not None:  # a whole answer says how long it is
            self._start["headers"] = [
                (name, b"%d" % (int(value) + more) if name == b"content-length" else value)
                for name, value in self._start["headers"]
            ]
        return {**message, "body": body}
