"""Tokens of an OpenID Connect issuer (JWT) as keys: who signs in elsewhere needs no key of ours.

Algorithms are pinned to asymmetric ones, so neither ``none`` nor a token signed by the public key
as if it were a shared secret is taken. The issuer's keys (JWKS) are kept; while it does not answer,
those that are known go on counting.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemill.base.clock import monotonic, wall
from tidemill.base.errors import config_error
from tidemill.base.log import get_logger
from tidemill.server.access.keys import NOBODY, Key, KeyStore, Owner, Role
from tidemill.server.errors import reject

if TYPE_CHECKING:
    from jwt import PyJWK

log = get_logger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
ROLE_PREFIX = "tidemill-"
"""Of a role in a claim: an issuer's ``admin`` administers something else."""

REFRESH_SECONDS = 3600.0
"""Age of the issuer's keys at which they are read again."""

RETRY_SECONDS = 15.0
"""The least time between two attempts to read them: unknown key ids must not flood the issuer."""

LEEWAY_SECONDS = 30
MAX_TOKEN = 16_384
MAX_VERIFIED = 4096
VERIFIED_SECONDS = 300.0
"""How long a verified token counts without another look, though the issuer may withdraw its key."""

FETCH_SECONDS = 5.0

_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_ORDER = (Role.ADMIN, Role.MANAGER, Role.AUDITOR, Role.METRICS, Role.USER)

Fetch = Callable[[str], Awaitable[bytes]]
TeamOf = Callable[[str], Awaitable[Owner | None]]


@dataclass(frozen=True, slots=True)
class Issuer:
    """Whose tokens are taken.

    Attributes:
        url: of the issuer, as tokens have it in ``iss``.
        audience: that tokens must be for.
        role_claim: claim with roles, each ``tidemill-ROLE``; without one: user.
        team_claim: claim with the name of a team of the database.
    """

    url: str
    audience: str
    role_claim: str = "roles"
    team_claim: str = "team"


class Tokens:
    """A `KeyStore` of an issuer's tokens, and of another store's keys.

    Args:
        issuer: whose tokens.
        inner: for everything that is no token.
        team_of: the team of a name, or None.
        fetch: reads a URL; None: over HTTP.

    Raises:
        TidemillError: kind CONFIG: the extra is not installed.
    """

    closed = True
    settled = True

    def __init__(
        self, issuer: Issuer, inner: KeyStore, team_of: TeamOf, fetch: Fetch | None = None
    ) -> None:
        try:
            import jwt  # noqa: F401
            from cryptography.hazmat.primitives import hashes  # noqa: F401
        except ModuleNotFoundError as error:
            raise config_error(
                "oidc_issuer", "oidc_issuer needs the extra 'oidc': pip install 'tidemill[oidc]'"
            ) from error
        self._issuer = issuer
        self._inner = inner
        self._team_of = team_of
        self._fetch = fetch or _fetch
        self._keys: dict[str, PyJWK] = {}
        self._read = self._tried = -float("inf")
        self._reading = asyncio.Lock()
        # Verified tokens by digest: a client sends the same one for an hour.
        self._verified: OrderedDict[bytes, tuple[Mapping[str, Any], float]] = OrderedDict()

    @property
    def reloadable(self) -> bool:
        """See `KeyStore`."""
        return self._inner.reloadable

    async def settle(self) -> None:
        """It is known."""

    def by_id(self, key_id: str) -> Key | None:
        """See `KeyStore`."""
        return self._inner.by_id(key_id)

    def reload(self) -> str:
        """See `KeyStore`."""
        return self._inner.reload()

    async def find(self, token: str) -> Key | None:
        """See `KeyStore`."""
        if token.count(".") != 2 or not token.startswith("ey") or len(token) > MAX_TOKEN:
            return await self._inner.find(token)
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        claims = self._known(digest)
        if claims is None:
            claims = await self._verify(token)
            if claims is None:
                return None
            self._verified[digest] = claims, monotonic()
            if len(self._verified) > MAX_VERIFIED:
                self._verified.popitem(last=False)
        return await self._key(claims, digest)

    def _known(self, digest: bytes) -> Mapping[str, Any] | None:
        claims, since = self._verified.get(digest, (None, 0.0))
        if claims is None:
            return None
        if wall() < claims["exp"] + LEEWAY_SECONDS and monotonic() - since < VERIFIED_SECONDS:
            return claims
        del self._verified[digest]
        return None

    async def _verify(self, token: str) -> Mapping[str, Any] | None:
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            algorithm, kid = header.get("alg"), header.get("kid")
            if algorithm not in ALGORITHMS or not isinstance(kid, str):
                return None
            key = await self._signing_key(kid)
            # The key's own algorithm, where it has one: not what the token wishes.
            if key is None or key.algorithm_name not in (None, algorithm):
                return None
            found: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._issuer.audience,
                issuer=self._issuer.url,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        return found if isinstance(found.get("exp"), int | float) else None

    async def _signing_key(self, kid: str) -> PyJWK | None:
        known = kid in self._keys and monotonic() - self._read < REFRESH_SECONDS
        if not known and monotonic() - self._tried >= RETRY_SECONDS:
            async with self._reading:
                if monotonic() - self._tried >= RETRY_SECONDS:
                    await self._refresh()
        if not self._keys:
            raise reject(
                503,
                "the issuer of the token cannot be reached to verify it; try again later",
                code="issuer_unavailable",
                headers={"Retry-After": f"{RETRY_SECONDS:.0f}"},
            )
        return self._keys.get(kid)

    async def _refresh(self) -> None:
        from jwt import PyJWK, PyJWTError

        self._tried = monotonic()
        try:
            url = self._issuer.url.rstrip("/") + "/.well-known/openid-configuration"
            async with asyncio.timeout(2 * FETCH_SECONDS):
                document = json.loads(await self._fetch(url))
                if document.get("issuer") != self._issuer.url:
                    raise ValueError("the issuer calls itself by another name")
                found = json.loads(await self._fetch(document["jwks_uri"]))["keys"]
        except Exception as error:  # whatever an issuer may answer
            log.error("the keys of the OIDC issuer stay as they were: %s", type(error).__name__)
            return
        keys = {}
        for one in found:
            try:
                if one.get("kty") != "oct" and one.get("use", "sig") == "sig":
                    keys[str(one["kid"])] = PyJWK.from_dict(one)
            except (PyJWTError, KeyError, AttributeError, ValueError):
                continue  # of a kind that is not known here
        self._keys, self._read = keys, monotonic()

    async def _key(self, claims: Mapping[str, Any], digest: bytes) -> Key:
        subject = str(claims["sub"])
        name = subject if _NAME.fullmatch(subject) else hashlib.sha256(subject.encode()).hexdigest()
        team, owner = claims.get(self._issuer.team_claim), NOBODY
        if isinstance(team, str) and team:
            known = await self._team_of(team)
            if known is None:
                raise reject(
                    403,
                    "the token's team is not known here, or disabled; `tidemill teams create` "
                    "makes one",
                    code="unknown_team",
                )
            owner = replace(known, user_name=name)
        # A slash is in no key's name.
        return Key(f"oidc/{name}", digest, _role(claims.get(self._issuer.role_claim)), owner=owner)


def _role(claim: object) -> Role:
    values = claim if isinstance(claim, list) else [claim]
    found = {value for value in values if isinstance(value, str)}
    return next((role for role in _ORDER if f"{ROLE_PREFIX}{role}" in found), Role.USER)


async def _fetch(url: str) -> bytes:
    import httpx

    if not url.startswith("https://") and not _LOCAL.match(url):
        raise ValueError("an issuer's addresses begin with https://")
    async with httpx.AsyncClient(timeout=FETCH_SECONDS, follow_redirects=False) as client:
        answer = await client.get(url)
        answer.raise_for_status()
        return answer.content


_LOCAL = re.compile(r"http://(?:127\.0\.0\.1|localhost|\[::1\])(?=[:/])")
