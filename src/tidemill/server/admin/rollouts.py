"""/admin/rollouts: names with versions, how their traffic is divided, and what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import TidemillError, bad_request
from tidemill.server.access.keys import Role
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_body, read_model
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.dialects.members import Body
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response

if TYPE_CHECKING:
    from tidemill.server.host.rollout.named import NameTraffic
    from tidemill.server.host.rollout.traffic import Traffic
    from tidemill.server.host.versions import Versions

ADMINS = frozenset({Role.ADMIN})


class RolloutBody(Body, kw_only=True):
    """Body of POST /admin/rollouts.

    Attributes:
        name: what clients use.
        to: the new version of a canary. The fields of the rule (docs/rollouts.md) stand next to it.
        stable: the version that it is compared with; default: the one that answers now.
        traffic: any other rule, with its `kind`; excludes `to`.
        steps, observations, seconds, bounds, alpha, sticky, min_units, max_seconds: of the canary.
    """

    name: str
    to: str | None = None
    stable: str | None = None
    traffic: dict[str, Any] | str | None = None
    steps: list[float | dict[str, Any]] | None = None
    observations: int | None = None
    seconds: float | None = None
    bounds: dict[str, Any] | None = None
    alpha: float | None = None
    sticky: str | None = None
    min_units: int | None = None
    max_seconds: float | str | None = None


_RULE = tuple(f for f in RolloutBody.__struct_fields__ if f not in ("name", "to", "traffic"))


async def list_rollouts(context: ServerContext, request: Request) -> Response:
    """Names with versions: how their traffic is divided, and the comparison of their versions."""
    versions = _versions(context)
    found = () if versions is None else versions.all
    return json_response({"rollouts": [_document(one) for one in found]})


async def get_rollout(context: ServerContext, request: Request) -> Response:
    """One name with versions."""
    _, traffic = _named(context, request.path_params["name"])
    return json_response(_document(traffic))


async def start_rollout(context: ServerContext, request: Request) -> Response:
    """Divide a name's traffic by another rule: a canary to a new version, weights, a shadow.

    A canary gets traffic in steps that go on by themselves; it is promoted, or rolled back as soon
    as the evidence shows that it is worse than its bounds allow.
    """
    body = await read_model(RolloutBody, request, context.limits)
    versions, traffic = _named(context, body.name)
    versions.set_rule(traffic, _rule_of(body, traffic))
    return json_response(_document(traffic))


async def promote_rollout(context: ServerContext, request: Request) -> Response:
    """End the rollout of a name with all traffic to the new version, whatever the evidence."""
    versions, traffic = await _commanded(context, request)
    versions.promote(traffic)
    return json_response(_document(traffic))


async def abort_rollout(context: ServerContext, request: Request) -> Response:
    """End a rollout, weights or a shadow with all traffic to the stable version."""
    versions, traffic = await _commanded(context, request)
    versions.abort(traffic)
    return json_response(_document(traffic))


def _versions(context: ServerContext) -> Versions | None:
    """The names with versions; None, and nothing is imported for them, where there are none."""
    host = context.host
    if host.versions is None and not any("@" in slot.name for slot in host.slots):
        return None
    versions = context.versions()
    versions.group()
    return versions


async def _commanded(context: ServerContext, request: Request) -> tuple[Versions, NameTraffic]:
    """The name that a request without a body is about."""
    await read_body(request, context.limits, bare=True)  # not from another site's page
    return _named(context, request.path_params["name"])


def _named(context: ServerContext, name: str) -> tuple[Versions, NameTraffic]:
    versions = _versions(context)
    traffic = None if versions is None else versions.find(name)
    if versions is not None and traffic is not None:
        return versions, traffic
    if context.host.has(name):
        raise bad_request(
            "name",
            f"{name!r} is one model; only a name with versions has traffic to divide: models that "
            f"are called {name}@1 and {name}@2, and none that is called {name} (`tidemill cp`)",
        )
    known = "" if versions is None else ", ".join(one.name for one in versions.all)
    raise reject(
        404,
        f"{name[:256]!r} is no name with versions; this server has {known or 'none'}",
        param="name",
        code="model_not_found",
    )


def _rule_of(body: RolloutBody, traffic: NameTraffic) -> Traffic:
    from tidemill.server.host.rollout.traffic import parse_traffic

    fields = {name: getattr(body, name) for name in _RULE}
    given = {name: value for name, value in fields.items() if value is not None}
    if body.traffic is not None:
        if body.to is not None or given:
            wrong = "to" if body.to is not None else next(iter(given))
            raise bad_request(wrong, f"{wrong} belongs into traffic, or traffic is left out")
        return parse_traffic(body.traffic, "traffic", error=_wrong)
    if body.to is None:
        raise bad_request("to", "to names the new version; or traffic gives a whole rule")
    raw = {"kind": "canary", "stable": traffic.stable, "canary": body.to, **given}
    return parse_traffic(raw, "", error=_wrong)


def _wrong(field: str | None, message: str) -> TidemillError:
    """An error with the field as the body has it."""
    known, message = (field or "").removeprefix("."), message.removeprefix(".")
    if known == "canary":
        known, message = "to", "to" + message.removeprefix("canary")
    return bad_request(known, message)


def _document(traffic: NameTraffic) -> dict[str, Any]:
    from tidemill.server.host.rollout.status import experiment_status, rollout_status
    from tidemill.server.host.rollout.traffic import to_builtins

    rollout, experiment = traffic.rollout, traffic.experiment
    return {
        "name": traffic.name,
        "aliases": list(traffic.aliases),
        "versions": list(traffic.versions),
        "traffic": to_builtins(traffic.rule),
        "percents": traffic.percents(),
        "running": traffic.running,
        "rollout": None if rollout is None else msgspec.to_builtins(rollout_status(rollout)),
        "experiment": None
        if experiment is None
        else msgspec.to_builtins(experiment_status(experiment)),
    }


ENDPOINTS = (
    Endpoint("GET", "/admin/rollouts", list_rollouts, roles=ADMINS),
    Endpoint("POST", "/admin/rollouts", start_rollout, RolloutBody, ADMINS),
    Endpoint("POST", "/admin/rollouts/{name:path}/promote", promote_rollout, roles=ADMINS),
    Endpoint("POST", "/admin/rollouts/{name:path}/abort", abort_rollout, roles=ADMINS),
    Endpoint("GET", "/admin/rollouts/{name:path}", get_rollout, roles=ADMINS),
)
