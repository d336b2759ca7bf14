"""Routes of a gateway: those of every dialect that ask a model for something, answered by targets;
the models; how the gateway and its targets are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from secrets import token_hex
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidemill.base.clock import monotonic
from tidemill.base.log import get_logger
from tidemill.base.trace_context import TraceContext
from tidemill.gateway.asked import Asked, read
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.here import Own
from tidemill.gateway.metrics import GatewayMetrics
from tidemill.gateway.opened import LOOP
from tidemill.gateway.operated import Operated
from tidemill.gateway.relay import Relayed
from tidemill.gateway.routing.health import State
from tidemill.gateway.routing.privacy import Verdict, judge
from tidemill.gateway.wire.kinds import MESSAGES
from tidemill.server.access.auth import Principal, principal_of
from tidemill.server.access.caller import TIMEOUT_HEADER, caller_of
from tidemill.server.access.keys import Role
from tidemill.server.admin import audit, health, identity, quotas, requests, usage
from tidemill.server.context import ServerContext
from tidemill.server.dialects.body import read_body
from tidemill.server.dialects.dialect import METRICS_READERS, PUBLIC, Dialect, Endpoint, Handler
from tidemill.server.errors import reject
from tidemill.server.transport.pieces import json_response
from tidemill.telemetry.record import Operation

log = get_logger(__name__)

_COUNTING = frozenset(
    {"/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens"}
)
_EMBEDDING = frozenset(
    {"/v1/embeddings", "/embed", "/v1/embed", "/v2/embed", "/api/embed", "/api/embeddings"}
)
_SCORING = frozenset({"/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/similarity"})
_GENERATING = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", MESSAGES),
        *("/api/chat", "/api/generate", "/generate", "/generate_stream", "/", "/completion"),
        *("/completions", "/infill", "/v2/models/{model:path}/infer"),
        *("/v2/models/{model:path}/generate", "/v2/models/{model:path}/generate_stream"),
    }
)
OPERATIONS = {
    **dict.fromkeys(_COUNTING, Operation.COUNT),
    **dict.fromkeys(_EMBEDDING, Operation.EMBED),
    **dict.fromkeys(_SCORING, Operation.SCORE),
    **dict.fromkeys(_GENERATING, Operation.GENERATE),
}
"""Routes that targets answer. What keeps state at one server (batches, files, conversations) is not
among them."""

_PASSED = ("anthropic-beta", "anthropic-version", "accept")
_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Gateway:
    """What the routes share.

    Args:
        fleet: the targets.
        context: of the server.
    """

    def __init__(self, fleet: Fleet, context: ServerContext) -> None:
        self.fleet = fleet
        self.metrics = GatewayMetrics(context.metrics.registry, fleet.targets, fleet.holding)
        self._name = f"tidemill-gateway-{token_hex(8)}"  # in Via, of this process alone

    async def relay(self, context: ServerContext, request: Request) -> Response:
        """The answer of a target."""
        arrival = monotonic()
        body = await read_body(request, context.limits)
        path = request.url.path
        named = request.path_params.get("model", "")
        asked = read(path, body, whole=self.reads_texts, named=named)
        if not asked.model:
            asked = replace(asked, model=self.fleet.default(path))
        return self.answer(request, asked, body, arrival)

    @property
    def reads_texts(self) -> bool:
        """What requests say is looked at."""
        return bool(self.fleet.rules.detectors)

    def answer(
        self, request: Request, asked: Asked, body: bytes, arrival: float, own: Own | None = None
    ) -> Response:
        """The answer of whichever target gets the request.

        Args:
            request: the client's.
            asked: what it asks for, of a model.
            body: as it came.
            arrival: when.
            own: the answer of the server itself, which is one of the targets.
        """
        config, path, state = self.fleet.config, request.url.path, request.state
        state.begun = monotonic()
        state.sent_as = {}
        state.operation = OPERATIONS[state.route]
        state.streamed = asked.stream
        principal = principal_of(request)
        principal.policy.check_model(principal.name, asked.model)
        caller = caller_of(request, None, arrival, cache_salt=_salt(asked))
        session = None
        if config.routing.session_header is not None:
            session = request.headers.get(config.routing.session_header)
        asked = replace(
            asked,
            path=quote(path, safe="/:@~!$&'()*+,;="),
            verdict=self._verdict(request, body, principal),
            deadline=caller.deadline,
            salt=caller.cache_salt,
            session=_session(caller.client, session) if session else "",
            name=state.request_id,
        )
        if caller.max_tokens is not None:
            asked = _bounded(asked, caller.max_tokens)
        asked = asked.with_keys()
        headers = {**_headers(request, asked, arrival), b"via": self._via(request)}
        return Relayed(self.fleet, self.metrics, request, asked, caller, headers, own)

    def _via(self, request: Request) -> bytes:
        """The gateways that a request came through, this one last. Raises: it came through here."""
        before = request.headers.getlist("via")
        if any(self._name in one for one in before):
            raise reject(
                LOOP,
                "this request has come back to the gateway that sent it: the url of a target leads "
                "to the gateway itself, perhaps by way of another one",
                code="gateway_loop",
            )
        return ", ".join((*before, f"1.1 {self._name}")).encode("latin-1")

    def _verdict(self, request: Request, body: bytes, principal: Principal) -> Verdict:
        # Each proxy on the way may have added one: that a single one marks it suffices.
        marks = request.headers.getlist(self.fleet.config.privacy.header)
        residency = principal.policy.residency
        verdict = judge(
            msgspec.json.decode(body) if self.fleet.rules.detectors else None,
            self.fleet.rules,
            marked=any(mark.strip().lower() not in ("", "false", "0") for mark in marks),
            residencies=[residency] if residency else (),
        )
        if verdict.private:
            because = ",".join(verdict.because)
            # The record of the request, and with it the audit log, says why it was confined.
            request.state.subject = f"private:{because}"
            for why in verdict.because:
                self.metrics.private.labels(why).inc()
            log.info("request %s is private: %s", request.state.request_id, because)
        return verdict

    # -- what there is -------------------------------------------------------------------------

    def _permitted(self, request: Request) -> list[str]:
        policy = principal_of(request).policy
        return [name for name in self.fleet.models if policy.allows_model(name)]

    async def models(self, context: ServerContext, request: Request) -> Response:
        """The models of all targets."""
        data = [_model(name) for name in self._permitted(request)]
        return json_response({"object": "list", "data": data})

    async def model(self, context: ServerContext, request: Request) -> Response:
        """A model by name."""
        name: str = request.path_params["model"]
        if name not in self._permitted(request):
            raise reject(404, f"no target has the model {name[:128]!r}", code="model_not_found")
        if "anthropic-version" in request.headers:
            return json_response(_anthropic_model(name))
        return json_response(_model(name))

    async def anthropic_models(self, context: ServerContext, request: Request) -> Response:
        """The models of all targets, in Anthropic's shape."""
        data = [_anthropic_model(name) for name in self._permitted(request)]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return json_response({"data": data, "has_more": False, **ends})

    async def ollama_tags(self, context: ServerContext, request: Request) -> Response:
        """The models of all targets, in Ollama's shape."""
        names = self._permitted(request)
        return json_response({"models": [{"name": name, "model": name} for name in names]})

    async def about(self, context: ServerContext, request: Request) -> Response:
        """Name, version and targets of this gateway."""
        found = {"server": "tidemill gateway", "version": context.version}
        return json_response({**found, "targets": len(self.fleet.targets)})

    async def readyz(self, context: ServerContext, request: Request) -> Response:
        """Readiness: 200 while one target at least may be asked, or requests can wait for engines
        that come and go. To who has a key it says which."""
        now = monotonic()
        up = any(one.health.state(now) is State.CLOSED for one in self.fleet.targets)
        up = up or bool(self.fleet.config.scaled)
        draining = context.host.draining
        ready = up and not draining
        found: dict[str, object] = {"status": "ready" if ready else "unavailable"}
        if principal_of(request).role is not None:
            found["targets"] = {one.name: one.health.state(now).value for one in self.fleet.targets}
        return json_response(found, 200 if ready else 503)

    async def targets(self, context: ServerContext, request: Request) -> Response:
        """What the gateway knows of each target: the facts by which it chooses."""
        now = monotonic()
        return json_response(
            {
                "policy": self.fleet.config.routing.policy,
                "held": {
                    model: {"requests": one.requests, "prompt_tokens": one.prompt_tokens}
                    for model, one in self.fleet.holding.queues.items()
                },
                "targets": [
                    {
                        "name": one.name,
                        "kind": one.config.kind,
                        "tags": sorted(one.where),
                        "models": one.models,
                        "roles": one.roles,
                        "breaker": one.health.state(now).value,
                        "reason": one.health.reason,
                        "active": one.load.active,
                        "given": one.load.given,
                        "wait_seconds": round(one.load.waiting(now), 4),
                        "prompt_tokens_per_second": round(one.load.rate, 1),
                        "floor_seconds": round(one.load.floor(now), 4),
                        "within_budget": one.within_budget,
                        "home_share": round(one.trust.share, 2),
                        "cached_blocks": self.fleet.announced.blocks(one.name),
                    }
                    for one in self.fleet.targets
                ],
            }
        )

    # -- tables --------------------------------------------------------------------------------

    @property
    def listings(self) -> dict[tuple[str, str], Handler]:
        """Handlers of a dialect's routes that say which models there are."""
        return {
            ("openai", "/v1/models"): self.models,
            ("openai", "/v1/models/{model:path}"): self.model,
            ("anthropic", "/v1/models"): self.anthropic_models,
            ("anthropic", "/v1/models/{model:path}"): self.model,
            ("ollama", "/api/tags"): self.ollama_tags,
        }

    def dialects(self, dialects: Sequence[Dialect]) -> tuple[Dialect, ...]:
        """Those of a server, as far as targets answer them."""
        own, found = self.listings, []
        for dialect in dialects:
            endpoints = []
            for endpoint in dialect.endpoints:
                if endpoint.method == "POST" and endpoint.path in OPERATIONS:
                    endpoints.append(replace(endpoint, handler=_like(endpoint, self.relay)))
                elif endpoint.method == "GET" and (dialect.name, endpoint.path) in own:
                    handler = own[dialect.name, endpoint.path]
                    endpoints.append(replace(endpoint, handler=handler))
            found.append(replace(dialect, endpoints=tuple(endpoints), not_served={}))
        return tuple(found)

    @property
    def facts(self) -> tuple[Endpoint, ...]:
        """Routes that say what is known of targets."""
        roles = METRICS_READERS | {Role.MANAGER}
        return (Endpoint("GET", "/admin/targets", self.targets, roles=roles),)

    def operators(self) -> tuple[Endpoint, ...]:
        """Routes that belong to no dialect."""
        return (
            Endpoint("GET", "/v1", self.about),
            Endpoint("GET", "/version", health.version),
            Endpoint("GET", "/healthz", health.healthz, roles=PUBLIC),
            Endpoint("GET", "/readyz", self.readyz, roles=PUBLIC),
            Endpoint("GET", "/health", self.readyz, roles=PUBLIC),
            Endpoint("GET", "/ping", self.readyz, roles=PUBLIC),
            Endpoint("GET", "/metrics", health.metrics, roles=METRICS_READERS),
            *self.facts,
            *Operated(self.fleet).endpoints,
            *(*audit.ENDPOINTS, *identity.ENDPOINTS, *quotas.ENDPOINTS, *usage.ENDPOINTS),
            *requests.ENDPOINTS,
        )


def _like(endpoint: Endpoint, handler: Handler) -> Handler:
    """A handler with the name and description of an endpoint's own."""

    async def relay(context: ServerContext, request: Request) -> Response:
        return await handler(context, request)

    relay.__name__ = endpoint.handler.__name__
    relay.__doc__ = endpoint.handler.__doc__
    return relay


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tidemill-gateway"}


def _anthropic_model(name: str) -> dict[str, str]:
    created = "1970-01-01T00:00:00Z"
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def _salt(asked: Asked) -> str | None:
    salt = asked.value("cache_salt")
    return salt if isinstance(salt, str) else None


def _session(client: str, session: str) -> str:
    """A session's name, by which nobody learns whose it is."""
    return blake2b(f"{client}\0{session}".encode(errors="replace"), digest_size=16).hexdigest()


def _bounded(asked: Asked, most: int) -> Asked:
    """A request whose answer may not be longer than its key permits."""
    names = [name for name in _LENGTHS if asked.value(name) is not None]
    if not names:
        names = ["max_output_tokens" if asked.path == "/v1/responses" else "max_tokens"]
    if asked.path not in (*_BOUNDED, MESSAGES):
        return asked
    members = dict(asked.members)
    for name in names:
        wanted = asked.value(name)
        if not isinstance(wanted, int) or wanted > most:
            members[name] = msgspec.Raw(b"%d" % most)
    return replace(asked, members=members, most=min(asked.most or most, most))


_BOUNDED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


def _headers(request: Request, asked: Asked, now: float) -> dict[bytes, bytes]:
    """Headers that every target gets."""
    found = {b"x-request-id": request.state.request_id.encode()}
    for name in _PASSED:
        if value := request.headers.get(name):
            found[name.encode()] = value.encode("latin-1")
    context: TraceContext | None = request.state.trace_context
    if context is not None:
        found |= {k.encode(): v.encode("latin-1") for k, v in context.headers().items()}
    if asked.deadline is not None:
        found[TIMEOUT_HEADER.lower().encode()] = b"%.3f" % max(0.001, asked.deadline - now)
    return found
