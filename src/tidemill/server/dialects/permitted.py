"""Models by name, as far as a request's key may use them: dialects find models here alone."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request

from tidemill.base.errors import bad_request, unsupported
from tidemill.generation.request import GenerateRequest
from tidemill.server.access.auth import principal_of
from tidemill.server.context import ServerContext
from tidemill.server.errors import Rejection
from tidemill.server.host.routed import Routed
from tidemill.server.host.served import ServedModel
from tidemill.server.host.slot import Slot


def find_model(context: ServerContext, request: Request, name: str | None) -> Slot:
    """The model of that name (see `ModelHost.find`), if the request's key may use it.

    Raises:
        Rejection: 404; 403 where the key may not use it, whether it exists or not.
    """
    principal = principal_of(request)
    policy = principal.policy
    try:
        slot = context.host.find(name)
    except Rejection:
        if name:
            policy.check_model(principal.name, name)
        raise
    policy.check_model(principal.name, *_checked(context, name, slot))
    return slot


def _checked(context: ServerContext, name: str | None, slot: Slot) -> tuple[str, ...]:
    """The names of which a key must be allowed one: of a model's adapter those of the adapter."""
    if (found := context.host.adapter(name)) is not None:
        return (name or "", *_names_of(slot, found[1]))
    return name or slot.name, slot.name


def _names_of(slot: Slot, adapter: str) -> tuple[str, str]:
    return adapter, f"{slot.name.partition('@')[0]}:{adapter}"


async def with_adapters(
    request: Request, routed: Routed, model: ServedModel, asked: GenerateRequest
) -> GenerateRequest:
    """A request with the adapters that it names itself, if its key may use each of them.

    Raises:
        Rejection: 403.
        TidemillError: BAD_REQUEST, NOT_FOUND, or why one cannot be used.
    """
    if asked.adapter is None:
        return asked
    if routed.adapter is not None and not asked.adapter:
        return replace(asked, adapter=None)
    if routed.adapter is not None:
        raise bad_request(
            "model",
            f"the model {routed.called!r} is an adapter, and the request names adapters as well: "
            f"send {routed.slot.name!r} as model, or no adapters",
        )
    if model.pipeline is not None:
        raise unsupported("model", "a pipeline takes no adapters: its models do")
    adapters, principal = routed.slot.adapters, principal_of(request)
    for name in adapters.named(asked.adapter):
        principal.policy.check_model(principal.name, *_names_of(routed.slot, name))
    uses = await adapters.uses(model.client, asked.adapter)
    return replace(asked, adapters=uses)


def named_models(context: ServerContext, request: Request) -> list[tuple[str, Slot]]:
    """The names under which the request's key may use models, and those models."""
    policy, host = principal_of(request).policy, context.host
    found = [(name, host.find(name)) for name in host.names]
    return [
        (name, slot) for name, slot in found if policy.allows_model(*_checked(context, name, slot))
    ]


def model_slots(context: ServerContext, request: Request) -> list[Slot]:
    """The models that the request's key may use."""
    policy = principal_of(request).policy
    return [slot for slot in context.host.slots if policy.allows_model(slot.name)]
