"""Stored responses: retrieved, followed, cancelled, deleted; and the size of a prompt."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.errors import bad_request
from tidemill.generation.prepare import prepare
from tidemill.server.access.auth import principal_of
from tidemill.server.access.caller import caller_of
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.openai.responses import listing
from tidemill.server.dialects.openai.responses.asked import continued, read_request
from tidemill.server.dialects.openai.responses.create import Followed
from tidemill.server.dialects.openai.responses.schema import InputTokensRequest
from tidemill.server.dialects.openai.responses.service import service_of
from tidemill.server.dialects.openai.responses.store import StoredResponse
from tidemill.server.dialects.permitted import find_model
from tidemill.server.dialects.query import check_query, flag, number
from tidemill.server.dialects.respond import ModelAnswer
from tidemill.server.errors import reject
from tidemill.server.host.pace import LOOP
from tidemill.server.host.served import ServedModel
from tidemill.server.transport.pieces import json_response

_QUERY = frozenset({"stream", "starting_after", "include", "include[]", "include_obfuscation"})
_MAX_EVENT = 10**9


async def _found(context: ServerContext, request: Request) -> StoredResponse:
    service, owner = service_of(context), principal_of(request).client_id
    identity: str = request.path_params["response_id"]
    await service.recall(owner, identity)
    return service.found(owner, identity)


async def get(context: ServerContext, request: Request) -> Response:
    """See `routes.get_response`."""
    check_query(request, _QUERY)
    entry = await _found(context, request)
    if flag(request, "include_obfuscation"):
        raise bad_request("include_obfuscation", "include_obfuscation: streams are not obfuscated")
    after = number(request, "starting_after", 0, _MAX_EVENT)
    last = request.headers.get("last-event-id")
    if not flag(request, "stream"):
        if after is not None:
            raise bad_request("starting_after", "starting_after needs stream=true")
        return json_response(entry.response)
    run = service_of(context).run(entry.owner, entry.id)
    if run is None:
        why = (
            "its events are no longer kept"
            if entry.response["background"]
            else ("only responses that were created with background: true can be streamed again")
        )
        raise bad_request("stream", f"stream: {why}; retrieve the response without stream")
    if after is None and last is not None:
        if not (last.isascii() and last.isdigit() and len(last) < 10):
            raise bad_request("Last-Event-ID", "Last-Event-ID must be the number of an event")
        after = int(last)
    return Followed(run.stream, 0 if after is None else after + 1)


async def delete(context: ServerContext, request: Request) -> Response:
    """See `routes.delete_response`."""
    entry = await _found(context, request)
    await service_of(context).remove(entry)
    return json_response({"id": entry.id, "object": "response", "deleted": True})


async def cancel(context: ServerContext, request: Request) -> Response:
    """See `routes.cancel_response`."""
    entry = await _found(context, request)
    if not entry.response["background"]:
        raise reject(
            400,
            "only responses that were created with background: true can be cancelled; to end "
            "another one close its connection",
            param="response_id",
        )
    await service_of(context).cancel(entry)
    return json_response(entry.response)


async def input_items(context: ServerContext, request: Request) -> Response:
    """See `routes.list_input_items`."""
    return listing.page(request, (await _found(context, request)).given.all_items())


async def input_tokens(context: ServerContext, request: Request) -> Response:
    """See `routes.count_input_tokens`."""
    arrival = monotonic()
    body = await read_model(InputTokensRequest, request, context.limits)
    find_model(context, request, body.model)
    service, owner = service_of(context), principal_of(request).client_id
    await service.recall(owner, *continued(body))
    asked = read_request(body, request, owner, service.store, context.limits)
    generate = asked.generate(caller_of(request, body.timeout, arrival), arrival)

    async def count(model: ServedModel) -> Response:
        prepared = await prepare(model, generate, LOOP)
        request.state.hold.close()
        return json_response(
            {"object": "response.input_tokens", "input_tokens": prepared.prompt_tokens}
        )

    return ModelAnswer(context, request, body.model, count)
