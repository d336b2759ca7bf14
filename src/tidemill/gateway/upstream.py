"""A server that answers what it has itself, and has targets answer the rest: `[upstream]`.

Routes, choices, privacy and answers are the gateway's (`routes`, `fleet`, `relay`); what is here is
the handlers around the server's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from tidemill.base.clock import monotonic
from tidemill.base.errors import TidemillError
from tidemill.gateway.asked import Asked, read
from tidemill.gateway.config import checked
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.here import Here
from tidemill.gateway.probe import Probes
from tidemill.gateway.routes import OPERATIONS, Gateway
from tidemill.gateway.shared import Shared, share
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_body
from tidemill.server.dialects.dialect import Dialect, Endpoint, Handler
from tidemill.server.dialects.permitted import find_model
from tidemill.server.errors import Rejection
from tidemill.server.transport.pieces import json_response

_BARE = "/api/"
"""Routes whose bodies need no content type, as their dialect has it."""


class Upstream:
    """See the module docstring.

    Args:
        table: `[upstream]`, as a gateway's file.
        context: of the server.
        shared: other servers and gateways have its database, too: see `gateway.shared`.
    """

    def __init__(
        self, table: Mapping[str, Any], context: ServerContext, *, shared: bool = False
    ) -> None:
        config = checked(table, "upstream")
        self.here = Here(context, config.routing)
        self.fleet = Fleet(config, here=self.here)
        self.gateway = Gateway(self.fleet, context)
        self._probes = Probes(self.fleet)
        self._context = context
        self._shares = shared
        self._shared: Shared | None = None

    def start(self) -> None:
        """Begin to look at the targets."""
        self._probes.start()
        if self._shares:
            self._shared = share(self.fleet, self._context)

    async def reload(self, table: Mapping[str, Any]) -> None:
        """Go on with other tables: targets that stay as they are keep what is known of them."""
        config = checked(table, "upstream")
        self.here.permit(config.routing)
        gone = self.fleet.reload(config)
        self._probes.start()
        await self._probes.leave(gone)

    async def close(self) -> None:
        """End that, and close what is idle."""
        await self._probes.close()
        if self._shared is not None:
            await self._shared.close()

    @property
    def operators(self) -> tuple[Endpoint, ...]:
        """Further routes."""
        return self.gateway.facts

    def dialects(self, dialects: Sequence[Dialect]) -> tuple[Dialect, ...]:
        """Those of the server, whose models may be elsewhere."""
        return tuple(
            replace(one, endpoints=tuple(self._endpoint(one, e) for e in one.endpoints))
            for one in dialects
        )

    def _endpoint(self, dialect: Dialect, endpoint: Endpoint) -> Endpoint:
        handler: Handler | None = None
        if endpoint.method == "POST" and endpoint.path in OPERATIONS:
            handler = self._answering(endpoint.handler)
        elif endpoint.method == "GET":
            handler = self._listing(dialect.name, endpoint)
        if handler is None:
            return endpoint
        handler.__name__ = endpoint.handler.__name__
        handler.__doc__ = endpoint.handler.__doc__
        return replace(endpoint, handler=handler)

    # -- answers -------------------------------------------------------------------------------

    def _answering(self, own: Handler) -> Handler:
        async def answer(context: ServerContext, request: Request) -> Response:
            arrival, kept = monotonic(), Kept(request.receive)
            reading = Request(request.scope, kept.receive)
            path = request.url.path
            named = request.path_params.get("model", "")
            whole = self.gateway.reads_texts
            try:
                body = await read_body(reading, context.limits, bare=path.startswith(_BARE))
                asked = read(path, body, whole=whole, named=named)
            except (TidemillError, Rejection):  # it says what is wrong, or takes it nevertheless
                return await own(context, kept.again(request))
            if not self._may_leave(asked):
                return await own(context, kept.again(request))

            async def here(asked_here: Asked) -> Response:
                if asked_here.model == asked.model:
                    return await own(context, kept.again(request))
                return await own(context, _renamed(request, asked_here))

            if asked.model in self.here.target.listed:
                find_model(context, request, asked.model)  # whether its key may use it
            return self.gateway.answer(request, asked, body, arrival, here)

        return answer

    def _may_leave(self, asked: Asked) -> bool:
        """Whether another server may answer it, or another model."""
        name, fleet = asked.model, self.fleet
        if not name:
            return False
        others = [one for one in fleet.targets if one is not self.here.target]
        coming = name in fleet.config.scaled
        if coming or name in fleet.config.fallbacks or any(one.has(name) for one in others):
            return True
        unknown = any(not one.models for one in others)  # nobody could ask yet what it has
        return unknown and name not in self.here.target.listed

    # -- models --------------------------------------------------------------------------------

    def _listing(self, dialect: str, endpoint: Endpoint) -> Handler | None:
        own, theirs = endpoint.handler, self.gateway.listings.get((dialect, endpoint.path))
        if theirs is None:
            return None

        async def one(context: ServerContext, request: Request) -> Response:
            if request.path_params["model"] in self.here.target.listed:
                return await own(context, request)
            return await theirs(context, request)

        async def all_of_them(context: ServerContext, request: Request) -> Response:
            """Its own as it describes them, then those that others have."""
            mine: dict[str, Any] = msgspec.json.decode(bytes((await own(context, request)).body))
            more = msgspec.json.decode(bytes((await theirs(context, request)).body))
            for name, value in more.items():
                if isinstance(value, list):
                    known = {_name(entry) for entry in mine.get(name, ())}
                    more_of = [entry for entry in value if _name(entry) not in known]
                    mine[name] = [*mine.get(name, ()), *more_of]
            if "last_id" in mine and mine["data"]:
                mine["last_id"] = mine["data"][-1]["id"]
            return json_response(mine)

        return one if "{" in endpoint.path else all_of_them


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry.get("id", entry.get("name")))


class Kept:
    """The messages of a request's body, kept so that they can be received again.

    Args:
        receive: of its connection.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []

    async def receive(self) -> Message:
        """The next message."""
        message = await self._receive()
        self._messages.append(message)
        return message

    def again(self, request: Request) -> Request:
        """The request from its beginning."""
        left = iter(list(self._messages))

        async def receive() -> Message:
            return next(left, None) or await self._receive()

        return Request(request.scope, receive)


def _renamed(request: Request, asked: Asked) -> Request:
    """A request for another model."""
    scope = request.scope
    if "model" in request.path_params:
        scope = {**scope, "path_params": {**request.path_params, "model": asked.model}}
    body = msgspec.json.encode(asked.members)

    async def once() -> AsyncIterator[Message]:
        yield {"type": "http.request", "body": body, "more_body": False}

    parts = once()

    async def receive() -> Message:
        async for part in parts:
            return part
        return await request.receive()

    return Request(scope, receive)
