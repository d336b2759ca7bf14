"""What administrators ask Tidemill targets through the gateway: their models, a profile."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.errors import bad_request
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.look import get
from tidemill.gateway.opened import message_of
from tidemill.gateway.targets import Target
from tidemill.gateway.wire.connection import Lost
from tidemill.gateway.wire.pool import Full
from tidemill.server.admin.profile import CLIENT_LEFT, ProfileBody
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_model
from tidemill.server.dialects.dialect import ADMINS, Endpoint
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response
from tidemill.server.transport.stream import while_connected

MODELS = "/admin/models"
PROFILE = "/admin/profile"

ANSWER_SECONDS = 30.0
"""That a target has beyond the seconds of a profile."""

MAX_BYTES = 64 << 20


class TargetProfileBody(ProfileBody, kw_only=True):
    """As of a server's POST /admin/profile.

    Attributes:
        target: whose engine; default: the only Tidemill target's.
    """

    target: str | None = None


class Operated:
    """See the module docstring.

    Args:
        fleet: the targets.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def models(self, context: ServerContext, request: Request) -> Response:
        """The models of all Tidemill targets as each describes them, with `target`, its name; and
        why others say nothing, by their names, as `silent`. The gateway's keys there need the role
        admin."""
        query = request.url.query
        path = f"{MODELS}?{query}" if query else MODELS
        targets = self._tidemill
        found = await asyncio.gather(*(_models(one, path) for one in targets))
        models: list[dict[str, Any]] = []
        silent: dict[str, str] = {}
        held = 0
        for target, answer in zip(targets, found, strict=True):
            if isinstance(answer, str):
                silent[target.name] = answer
                continue
            models += ({**model, "target": target.name} for model in answer["models"])
            held += answer.get("memory_held", 0)
        document = {"memory_budget": None, "memory_held": held, "models": models}
        return json_response({**document, "silent": silent})

    async def profile(self, context: ServerContext, request: Request) -> Response:
        """Where the time of a model's engine at a target goes: as the target's POST
        /admin/profile. It ends when the client leaves."""
        body = await read_model(TargetProfileBody, request, context.limits)
        target = self._named(body.target)
        members = {
            "seconds": body.seconds,
            "trace": body.trace,
            "roofline": body.roofline,
            **({} if body.model is None else {"model": target.named(body.model)}),
        }
        answers: list[Response] = []

        async def take() -> None:
            answers.append(await _posted(target, members, body.seconds + ANSWER_SECONDS))

        await while_connected(request.receive, take())
        return answers[0] if answers else Response(status_code=CLIENT_LEFT)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The routes."""
        return (
            Endpoint("GET", MODELS, self.models, roles=ADMINS),
            Endpoint("POST", PROFILE, self.profile, TargetProfileBody, ADMINS),
        )

    @property
    def _tidemill(self) -> list[Target]:
        return [one for one in self._fleet.targets if one.config.kind == "tidemill"]

    def _named(self, name: str | None) -> Target:
        targets = {one.name: one for one in self._tidemill}
        if name is None and len(targets) == 1:
            return next(iter(targets.values()))
        if name in targets:
            return targets[name]
        known = f"there are {', '.join(targets)}" if targets else "there is none"
        what = "name the target" if name is None else f"no Tidemill target is called {name[:64]!r}"
        raise bad_request("target", f"{what}; {known}")


async def _models(target: Target, path: str) -> dict[str, Any] | str:
    """A target's models, or why it does not say."""
    try:
        status, body = await get(target, path)
        if status != 200:
            return f"{status}: {message_of(body)}"
        return msgspec.json.decode(body, type=dict[str, Any])
    except TimeoutError:
        return "no answer in time"
    except Full:
        return "all connections to it are in use (targets.max_active)"
    except (Lost, msgspec.DecodeError) as error:
        return str(error)


async def _posted(target: Target, members: dict[str, Any], seconds: float) -> Response:
    sent = target.post(PROFILE, msgspec.json.encode(members), {})
    try:
        async with asyncio.timeout(seconds), target.pool.exchange(sent) as connection:
            status = await connection.head()
            body = await connection.read_all(MAX_BYTES)
    except (Lost, Full, TimeoutError) as error:
        why = str(error) or "no answer in time"
        raise reject(502, f"target {target.name}: {why}", code="target_failed") from None
    if status != 200:
        message = f"target {target.name}: {message_of(body)}"
        if status in (401, 403):
            message += " (the gateway's key there, key_env, needs the role admin)"
        raise reject(502 if status in (401, 403) else status, message, code="refused")
    return Response(body, media_type="application/json")
