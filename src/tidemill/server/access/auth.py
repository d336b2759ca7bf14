"""Authentication: the principal of a request, and the middleware that determines it.

Without keys every client is admitted and identified by its address. With at least one key, every
route except the probes requires one. Unknown routes require one too, so that nothing can be
learnt without a key.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.contract.quotas import NO_LIMITS, Limits
from tidemill.server.access.keys import NOBODY, Key, KeyStore, NoKeys, Owner, Role
from tidemill.server.access.policy import OPEN, Policy
from tidemill.server.access.wrong_keys import WrongKeys
from tidemill.server.errors import Rejection, problem_response, reject

PROBES = frozenset({"/healthz", "/readyz", "/health", "/ping"})
"""Public, for orchestrators; without a key they reveal only whether the server is ready."""

# Top-level domains that are reserved and cannot be registered.
_PRIVATE = (".localhost", ".internal")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="tidemill"'}


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated client of a request: `request.state.principal` in every handler.

    Attributes:
        client_id: identity for fairness: ``key:NAME``, or ``addr:ADDRESS`` where there are no keys
            (an IPv6 /64 counts as one address, since a client can use all of it).
        name: the key's name, or the address; for logs.
        role: its permissions; None on a probe without a valid key.
        weight: share of the engine relative to other clients.
        cache_salt: prefixes are shared only between equal salts; empty: with all.
        key_id: of a key in the database; empty: none.
        owner: whose that key is.
        policy: what that key may, beyond its role.
        limits: on the use of its key, as a key file states them.
    """

    client_id: str
    name: str
    role: Role | None
    weight: float = 1.0
    cache_salt: str = ""
    key_id: str = ""
    owner: Owner = NOBODY
    policy: Policy = OPEN
    limits: Limits = NO_LIMITS

    @property
    def organisation(self) -> str:
        """Id of the organisation; empty: none."""
        return self.owner.organisation

    @property
    def team(self) -> str:
        """Id of the team; empty: none."""
        return self.owner.team

    @property
    def user(self) -> str:
        """Id of the user; empty: none."""
        return self.owner.user

    def salt_for(self, requested: str | None) -> str:
        """The cache salt of a request whose field `cache_salt` is `requested`.

        A request can only narrow what it shares: no client can name the salt of another.
        """
        if not requested:
            return self.cache_salt
        return hashlib.sha256(f"{self.cache_salt}\0{requested}".encode()).hexdigest()[:32]


def principal_of(request: Request) -> Principal:
    """The principal of a request; by address where no `AuthMiddleware` is installed (tests)."""
    found: Principal | None = getattr(request.state, "principal", None)
    return found or by_address(request.client.host if request.client else "", Role.ADMIN)


def by_address(host: str, role: Role | None) -> Principal:
    """The principal of a client without a key."""
    name = host or "local"
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    else:
        mapped = getattr(address, "ipv4_mapped", None)
        if mapped is not None:
            name = str(mapped)
        elif address.version == 6 and not address.is_loopback:
            name = str(ipaddress.ip_network((address, 64), strict=False))
    return Principal(f"addr:{name}", name, role)


def _by_key(key: Key, share: bool) -> Principal:
    salt = "" if share else hashlib.sha256(f"key\0{key.id or key.name}".encode()).hexdigest()[:32]
    return Principal(
        *(f"key:{key.name}", key.name, key.role, key.weight, salt),
        key_id=key.id,
        owner=key.owner,
        policy=key.policy,
        limits=key.limits,
    )


class AuthMiddleware:
    """ASGI middleware that sets `state.principal` or answers 401.

    Args:
        app: the wrapped application; it checks roles itself (`require`), since it knows the routes.
        keys: the key store.
        share_prefix_cache: whether clients with different keys may hit each other's prefixes.
        own_hosts: when given, requests without a key for other host names are rejected (see
            `check_host`).
        region: where this server is; see `Policy.residency`. None: requests are served elsewhere,
            and whoever passes them on looks.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyStore | None = None,
        *,
        share_prefix_cache: bool = False,
        own_hosts: Collection[str] | None = None,
        region: str | None = "",
    ) -> None:
        self.app = app
        self._keys = NoKeys() if keys is None else keys  # one without keys is false, and closed
        self._share = share_prefix_cache
        self._own_hosts = own_hosts
        self._region = region
        self._wrong = WrongKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or reject one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if "principal" in scope.get("state", {}):  # a request of the server's own (a batch's line)
            await self.app(scope, receive, send)
            return
        try:
            principal = await self._authenticate(scope)
        except Rejection as rejection:
            state = scope.setdefault("state", {})
            problem = replace(rejection.problem, request_id=state.get("request_id", ""))
            state["problem"] = problem
            response = problem_response(problem, state["error_body"])
            await response(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["principal"] = principal
        await self.app(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> Principal:
        client = scope.get("client")
        host = client[0] if client else ""
        path = scope["path"]
        probe = path in PROBES
        if not self._keys.settled and not probe:
            await self._keys.settle()
        if not self._keys.closed:
            if self._own_hosts is not None and not probe:
                check_host(scope["headers"], self._own_hosts)
            return by_address(host, Role.ADMIN)
        try:
            return await self._by_key(scope, host, path)
        except Rejection:
            if probe:
                return by_address(host, None)
            raise

    async def _by_key(self, scope: Scope, host: str, path: str) -> Principal:
        token = _sent_key(scope["headers"])
        key = await self._keys.find(token)
        if key is None:
            if path not in PROBES:
                await self._wrong.penalty(by_address(host, None).name, token)
            raise _unauthorized(_unknown(token))
        policy = key.policy
        if policy is not OPEN:
            policy.check_address(key.name, host)
            if self._region is not None:
                policy.check_residency(key.name, self._region)
            policy.check_route(key.name, path)
        return _by_key(key, self._share)


def require(principal: Principal, roles: Collection[Role]) -> None:
    """Raise a 403 unless the principal has one of the roles."""
    if principal.role not in roles:
        allowed = " or ".join(sorted(roles))
        raise reject(
            403, f"the key {principal.name!r} has the role {principal.role}; this takes {allowed}"
        )


def _sent_key(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The key of a request: in Authorization, else in Anthropic's x-api-key."""
    headers = list(headers)
    given = [value for name, value in headers if name == b"authorization"]
    if not given:
        given = [value for name, value in headers if name == b"x-api-key"]
        if len(given) != 1 or not given[0].strip():
            raise _unauthorized(
                "an API key is needed: send one header 'Authorization: Bearer KEY', or "
                "'x-api-key: KEY'"
            )
        return given[0].decode("latin-1").strip()
    if len(given) > 1:
        raise _unauthorized("there are several Authorization headers; send one")
    scheme, _, token = given[0].decode("latin-1").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized("the Authorization header must read 'Bearer KEY'")
    return token.strip()


def _unknown(token: str) -> str:
    from tidemill.store.secret import is_mistyped  # wrong keys alone need it

    if is_mistyped(token):
        return "the API key is mistyped or cut off: its checksum is wrong"
    return "the API key is not known here"


def _unauthorized(message: str) -> Rejection:
    return reject(401, message, headers=_CHALLENGE)


def check_host(headers: Iterable[tuple[bytes, bytes]], own: Collection[str]) -> None:
    """Reject a Host that is not a name of this machine.

    A server on a loopback address without a key is exposed to DNS rebinding: a web page whose host
    name resolves to 127.0.0.1 can reach it through the local browser. Such a name contains a dot
    and is not an IP address. Names without a dot cannot be registered, nor can those under
    ``.internal``, which containers use for their host (host.docker.internal).

    Raises:
        Rejection: 403.
    """
    value = next((v for n, v in headers if n == b"host"), b"").decode("latin-1").strip().lower()
    name = value.rpartition(":")[0] if value.rpartition(":")[2].isdigit() else value
    name = name.strip("[]").rstrip(".")
    if "." not in name or name in own or name.endswith(_PRIVATE):
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise reject(
            403,
            f"the host name {name[:128]!r} is not this server's; --allowed-host makes it known, "
            "and a server with an API key does not ask",
            code="unknown_host",
        ) from None
