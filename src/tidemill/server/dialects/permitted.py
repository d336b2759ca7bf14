"""Models by name, as far as a request's key may use them: dialects find models here alone."""

from __future__ import annotations

from starlette.requests import Request

from tidemill.server.access.auth import principal_of
from tidemill.server.context import ServerContext
from tidemill.server.errors import Rejection
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
    policy.check_model(principal.name, name or slot.name, slot.name)
    return slot


def named_models(context: ServerContext, request: Request) -> list[tuple[str, Slot]]:
    """The names under which the request's key may use models, and those models."""
    policy, host = principal_of(request).policy, context.host
    found = [(name, host.find(name)) for name in host.names]
    return [(name, slot) for name, slot in found if policy.allows_model(name, slot.name)]


def model_slots(context: ServerContext, request: Request) -> list[Slot]:
    """The models that the request's key may use."""
    policy = principal_of(request).policy
    return [slot for slot in context.host.slots if policy.allows_model(slot.name)]
