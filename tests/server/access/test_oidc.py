"""Tokens of an issuer as keys, and the attacks on them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tidemill.server.access import oidc
from tidemill.server.access.keys import Owner, Role, StaticKeys
from tidemill.server.access.oidc import Issuer, Tokens
from tidemill.server.errors import Rejection

URL = "https://login.example"
ISSUER = Issuer(URL, "tidemill")
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
FILE_KEY = "file-key-0123456789"


class Provider:
    """An issuer.

    Attributes:
        keys: of the JWKS by id.
        down: it does not answer.
        reads: how often its keys were read.
    """

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": RSA, "curve": CURVE}
        self.down = False
        self.reads = 0
        self.name = URL

    async def fetch(self, url: str) -> bytes:
        """The documents."""
        if self.down:
            raise OSError("no route to host")
        if url == f"{URL}/.well-known/openid-configuration":
            return json.dumps({"issuer": self.name, "jwks_uri": f"{URL}/keys"}).encode()
        assert url == f"{URL}/keys"
        self.reads += 1
        return json.dumps({"keys": [self._jwk(*item) for item in self.keys.items()]}).encode()

    @staticmethod
    def _jwk(kid: str, key: Any) -> dict[str, Any]:
        kind = (
            jwt.algorithms.RSAAlgorithm
            if hasattr(key, "key_size") and not isinstance(key, ec.EllipticCurvePrivateKey)
            else jwt.algorithms.ECAlgorithm
        )
        found: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
        return {**found, "kid": kid, "use": "sig"}


@pytest.fixture
def provider() -> Provider:
    return Provider()


async def _team(name: str) -> Owner | None:
    return Owner(team="team-1", team_name="search") if name == "search" else None


@pytest.fixture
def tokens(provider: Provider) -> Tokens:
    return Tokens(ISSUER, StaticKeys([FILE_KEY]), _team, provider.fetch)


def _claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    return {"iss": URL, "aud": "tidemill", "sub": "ann", "exp": now + 600, "iat": now, **more}


def _token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "one", **claims: Any) -> str:
    said = {name: value for name, value in _claims(**claims).items() if value is not None}
    return jwt.encode(said, key, algorithm, headers={} if kid is None else {"kid": kid})


async def test_a_token_is_a_key(tokens: Tokens, provider: Provider) -> None:
    key = await tokens.find(_token(team="search", roles=["x", "tidemill-manager"]))
    assert key is not None
    assert (key.name, key.role) == ("oidc/ann", Role.MANAGER)
    assert (key.owner.team, key.owner.user_name) == ("team-1", "ann")
    plain = await tokens.find(_token(CURVE, "ES256", "curve", roles="admin"))
    assert plain is not None
    assert plain.role is Role.USER  # an issuer's "admin" is not ours
    assert provider.reads == 1
    known = await tokens.find(FILE_KEY)
    assert known is not None and known.name == "key-1"
    assert tokens.closed and tokens.settled


async def test_a_subject_may_be_anything_and_a_name_not(tokens: Tokens) -> None:
    key = await tokens.find(_token(sub="a b\r\nX: y"))
    assert key is not None
    assert key.name == f"oidc/{hashlib.sha256(b'a b' + bytes([13, 10]) + b'X: y').hexdigest()}"


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _none() -> str:
    return f"{_part({'alg': 'none', 'kid': 'one'})}.{_part(_claims())}."


def _confused(algorithm: str = "HS256") -> str:
    """Signed by the public key, as if it were a shared secret."""
    public = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    text = f"{_part({'alg': algorithm, 'kid': 'one'})}.{_part(_claims())}"
    signature = hmac.new(public, text.encode(), "sha256").digest()
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _tampered() -> str:
    head, _, signature = _token().split(".")
    return f"{head}.{_part(_claims(roles=['tidemill-admin']))}.{signature}"


def _embedded() -> str:
    """Brings its own key."""
    said = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OTHER.public_key()))
    return jwt.encode(
        _claims(), OTHER, "RS256", headers={"kid": "x", "jwk": said, "jku": "http://a"}
    )


ATTACKS = {
    "none": _none(),
    "None": _none().replace(_part({"alg": "none", "kid": "one"}), _part({"alg": "None"})),
    "RS/HS confusion": _confused(),
    "HS512 confusion": _confused("HS512"),
    "tampered": _tampered(),
    "another key of the same id": _token(OTHER),
    "wrong kid": _token(OTHER, kid="two"),
    "no kid": _token(kid=None),
    "kid of another kind": _token(kid="curve"),
    "brings its own key": _embedded(),
    "expired": _token(exp=int(time.time()) - 120),
    "no expiry": _token(exp=None),
    "not yet": _token(nbf=int(time.time()) + 600),
    "another audience": _token(aud="else"),
    "no audience": _token(aud=None),
    "another issuer": _token(iss="https://evil.example"),
    "no subject": _token(sub=None),
    "no signature": _token().rpartition(".")[0] + ".",
    "garbage": "ey.ey.ey",
    "bytes": "ey\udcff.\udcff.x",
    "long": "ey" + "a" * 20_000 + ".b.c",
    "a list": f"{_part([1])}.{_part([1])}.x",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_attacks(tokens: Tokens, attack: str) -> None:
    assert await tokens.find(_token()) is not None
    assert await tokens.find(ATTACKS[attack]) is None


async def test_unknown_key_ids_do_not_flood_the_issuer(
    tokens: Tokens, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        assert await tokens.find(_token(kid=f"k{number}")) is None
    assert provider.reads == 1
    provider.keys["two"] = OTHER
    assert await tokens.find(_token(OTHER, kid="two")) is None
    clock = oidc.monotonic
    monkeypatch.setattr(oidc, "monotonic", lambda: clock() + oidc.RETRY_SECONDS)
    assert await tokens.find(_token(OTHER, kid="two")) is not None
    assert provider.reads == 2


async def test_an_issuer_that_is_down(
    tokens: Tokens, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.down = True
    with pytest.raises(Rejection) as caught:
        await tokens.find(_token())
    assert caught.value.problem.status == 503
    assert await tokens.find(FILE_KEY) is not None
    clock, later = oidc.monotonic, 0.0
    monkeypatch.setattr(oidc, "monotonic", lambda: clock() + later)
    provider.down, later = False, oidc.RETRY_SECONDS
    assert await tokens.find(_token()) is not None
    # What is known counts on, also beyond the age at which it would be read again.
    provider.down, later = True, oidc.RETRY_SECONDS + 2 * oidc.REFRESH_SECONDS
    assert await tokens.find(_token()) is not None


async def test_a_key_that_the_issuer_withdrew_ends(
    tokens: Tokens, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = _token(exp=int(time.time()) + 10_000)
    assert await tokens.find(token) is not None
    del provider.keys["one"]
    clock = oidc.monotonic
    monkeypatch.setattr(oidc, "monotonic", lambda: clock() + oidc.REFRESH_SECONDS)
    assert await tokens.find(token) is None


async def test_a_token_ends_where_it_was_verified_before(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = _token()
    assert await tokens.find(token) is not None
    now = time.time()
    monkeypatch.setattr(oidc, "wall", lambda: now + 700)
    monkeypatch.setattr(jwt.api_jwt.PyJWT, "_validate_exp", _expired)
    assert await tokens.find(token) is None


def _expired(*_: Any) -> None:
    raise jwt.ExpiredSignatureError


async def test_an_unknown_team_is_said(tokens: Tokens) -> None:
    with pytest.raises(Rejection) as caught:
        await tokens.find(_token(team="elsewhere"))
    assert caught.value.problem.status == 403


async def test_an_issuer_of_another_name_is_not_believed(
    tokens: Tokens, provider: Provider
) -> None:
    provider.name = "https://evil.example"
    with pytest.raises(Rejection):
        await tokens.find(_token())
