"""/admin/keys, /admin/teams and /admin/users; and every route with every role."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine
from prometheus_client import CollectorRegistry

from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.access.keys import Key, NoKeys, Role, digest_of
from tidemill.server.access.security import Security
from tidemill.server.access.stored import StoredKeys
from tidemill.server.admin import identity
from tidemill.server.app import DIALECTS, OPERATORS
from tidemill.server.dialects.dialect import Endpoint
from tidemill.server.storage import Storage
from tidemill.store import keys, teams
from tidemill.store.actors import Actor
from tidemill.store.database import Database
from tidemill.store.key_values import KeyValues
from tidemill.store.location import Location
from tidemill.store.secret import KeyHash, read_secret

ADMIN = Actor("cli:test")


class Roles(NoKeys):
    """A key for each role, called as it."""

    closed = True

    async def find(self, token: str) -> Key | None:
        """The key."""
        return Key(token, digest_of(token), Role(token)) if token in set(Role) else None


ENDPOINTS: tuple[Endpoint, ...] = (
    *(endpoint for dialect in DIALECTS for endpoint in dialect.endpoints),
    *OPERATORS,
)


@pytest.fixture(scope="module")
def roles_url() -> Iterator[str]:
    with serving(fake_context(ScriptedEngine()), Security(keys=Roles())) as url:
        yield url


@pytest.mark.parametrize("role", list(Role))
def test_every_route_admits_its_roles_alone(roles_url: str, role: Role) -> None:
    refused = admitted = 0
    with httpx.Client(base_url=roles_url, headers={"authorization": f"Bearer {role}"}) as http:
        for endpoint in ENDPOINTS:
            path = re.sub(r"\{.*?\}", "x", endpoint.path)
            answer = http.request(endpoint.method, path, content=b"[", timeout=60)
            may = not endpoint.roles or role in endpoint.roles
            by_role = answer.status_code == 403 and f"has the role {role}" in answer.text
            assert by_role is not may, (endpoint.method, path, role, answer.text)
            assert answer.status_code != 401
            refused += not may
            admitted += may
    assert admitted
    assert refused or role is Role.ADMIN


def test_what_each_role_may_is_as_documented() -> None:
    """Administrators everything; others no route of administrators that is not meant for them."""
    for endpoint in ENDPOINTS:
        assert not endpoint.roles or Role.ADMIN in endpoint.roles, endpoint.path
        if endpoint.path.startswith("/admin"):
            writes = endpoint.method != "GET"
            assert endpoint.roles, endpoint.path
            assert not writes or Role.AUDITOR not in endpoint.roles, endpoint.path
            assert not writes or Role.USER not in endpoint.roles, endpoint.path
            # Who one is may be known to all.
            known = endpoint.path == "/admin/whoami"
            assert known or Role.METRICS not in endpoint.roles, endpoint.path


@pytest.fixture
def server(location: Location, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A server with a database; secrets of its first keys by name."""
    secrets: dict[str, str] = {}

    async def prepare() -> None:
        database = Database(location)
        await database.open()
        hasher = KeyHash(read_secret(tmp_path))

        def work(connection: Any) -> None:
            for team in ("mine", "other"):
                teams.create_team(connection, ADMIN, team)
            for name, role, team in (
                ("root", "admin", "other"),
                ("boss", "manager", "mine"),
                ("eye", "auditor", "other"),
                ("dev", "user", "mine"),
                ("far", "user", "other"),
            ):
                made = keys.create_key(
                    connection, ADMIN, hasher, name, KeyValues(role=role), team=team
                )
                secrets[name] = made["key"]

        await database.write(work)
        await database.close()

    asyncio.run(prepare())
    context = fake_context(ScriptedEngine())
    stored = StoredKeys(location, tmp_path)
    context.storage = Storage(location, DatabaseMetrics(CollectorRegistry()))
    context.home, context.keys = tmp_path, stored
    follow = _Following(stored, context.storage)
    with serving(context, Security(keys=follow, stored=stored)) as url:
        yield url, secrets


class _Following:
    """Stored keys that are followed from the first request on, in the server's event loop."""

    def __init__(self, stored: StoredKeys, storage: Storage) -> None:
        self._stored = stored
        self._storage: Storage | None = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    async def settle(self) -> None:
        self._begin()
        await self._stored.settle()

    async def find(self, token: str) -> Key | None:
        self._begin()
        return await self._stored.find(token)

    def _begin(self) -> None:
        if self._storage is not None:
            storage, self._storage = self._storage, None
            self._stored.follow(storage)


def _as(server: tuple[str, dict[str, str]], name: str) -> httpx.Client:
    url, secrets = server
    headers = {"authorization": f"Bearer {secrets.get(name, name)}"}
    return httpx.Client(base_url=url, headers=headers, timeout=60)


def _until(http: httpx.Client, status: int) -> None:
    deadline = time.monotonic() + 30
    while http.get("/v1/models").status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_key_from_its_making_to_its_end(server: tuple[str, dict[str, str]]) -> None:
    with _as(server, "root") as http:
        body = {
            **{"name": "new", "team": "mine", "models": ["*"], "max_tokens": 9},
            **{"addresses": ["127.0.0.1"], "limits": {"rpm": 100}, "no_content": True},
        }
        answer = http.post("/admin/keys", json=body)
        assert answer.status_code == 201, answer.text
        made = answer.json()
        assert made["limits"] == {"requests_per_minute": 100}
        assert made["addresses"] == ["127.0.0.1/32"]
        with _as(server, made["key"]) as mine:
            _until(mine, 200)
        path = f"/admin/keys/{made['id']}"
        shown = http.get(path).json()
        assert "key" not in shown and shown["limits"] == made["limits"]
        changes = {"models": [], "max_tokens": 0, "weight": 2, "no_content": False}
        changed = http.patch(path, json=changes).json()
        assert (changed["models"], changed["max_tokens"]) == (None, None)
        assert (changed["weight"], changed["no_content"]) == (2, False)
        assert changed["addresses"] == ["127.0.0.1/32"]
        rotated = http.post(f"{path}/rotate", json={"overlap": 60}).json()
        assert rotated["key"] != made["key"]
        assert http.delete(path).json()["state"] == "revoked"
        with _as(server, rotated["key"]) as mine:
            _until(mine, 401)
        names = {key["name"] for key in http.get("/admin/keys").json()["keys"]}
        assert names == {"root", "boss", "eye", "dev", "far"}
        assert http.post("/admin/keys", json={"name": "dev"}).status_code == 400
        assert http.post("/admin/keys", json={"name": "x", "models": "y"}).status_code == 400
        assert http.post("/admin/keys", json={"name": "x", "nonsense": 1}).status_code == 400
        assert http.get("/admin/keys/nobody").status_code == 404
        for rule in (
            *({"max_tokens": 0}, {"models": []}, {"routes": []}, {"addresses": []}),
            *({"residency": ""}, {"expires": 0}, {"expires": 1_600_000_000}),
        ):
            refused = http.post("/admin/keys", json={"name": "none", **rule})
            assert refused.status_code == 400, refused.text
            assert refused.json()["error"]["param"] in rule
        assert http.get("/admin/keys/none").status_code == 404


def test_managers_and_auditors(server: tuple[str, dict[str, str]]) -> None:
    with _as(server, "boss") as http:
        names = {key["name"] for key in http.get("/admin/keys").json()["keys"]}
        assert names == {"boss", "dev"}
        assert http.post("/admin/keys", json={"name": "two"}).json()["team"] == "mine"
        assert http.post("/admin/keys", json={"name": "x", "role": "admin"}).status_code == 403
        for method, path in (
            ("GET", "/admin/keys/far"),
            ("DELETE", "/admin/keys/far"),
            ("GET", "/admin/teams/other"),
        ):
            assert http.request(method, path).status_code == 404, path
        assert http.post("/admin/teams", json={"name": "x"}).status_code == 403
        assert [t["name"] for t in http.get("/admin/teams").json()["teams"]] == ["mine"]
        made = http.post("/admin/users", json={"name": "u"})
        assert (made.status_code, made.json()["team"]) == (201, "mine")
    with _as(server, "eye") as http:
        assert len(http.get("/admin/keys").json()["keys"]) == 6
        assert http.get("/admin/users/u").json()["name"] == "u"
        assert http.delete("/admin/keys/far").status_code == 403
        assert http.post("/v1/chat/completions", json={}).status_code == 403
    with _as(server, "dev") as http:
        assert http.get("/admin/keys").status_code == 403


def test_the_routes_are_in_the_openapi_document(roles_url: str) -> None:
    headers = {"authorization": "Bearer admin"}
    document = httpx.get(f"{roles_url}/openapi.json", headers=headers).json()
    for endpoint in identity.ENDPOINTS:
        assert endpoint.method.lower() in document["paths"][endpoint.path]


def test_without_a_database_it_is_said(roles_url: str) -> None:
    answer = httpx.get(f"{roles_url}/admin/keys", headers={"authorization": "Bearer admin"})
    assert answer.status_code == 501
    assert "--database none" in answer.text
