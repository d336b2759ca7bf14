"""Quotas of a server with a database: from its start, with limits that are set beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.prices import Prices
from tidemill.contract.quotas import Defaults, Level, parse_limits
from tidemill.generation.caller import UNLIMITED
from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.access.auth import Principal
from tidemill.server.access.keys import Role
from tidemill.server.errors import Rejection
from tidemill.server.quotas import gate, treasury
from tidemill.server.quotas.gate import Gate, may_limit
from tidemill.server.quotas.service import QuotaService
from tidemill.server.storage import Storage
from tidemill.store import limits
from tidemill.store.database import Database
from tidemill.store.location import Location, location_of

CI = Principal("key:ci", "ci", Role.USER)
SUBJECT = (Level.KEY, "key:ci")


def service_of(
    location: Location, defaults: Defaults | None = None
) -> tuple[QuotaService, Storage]:
    registry = fake_context(ScriptedEngine()).metrics.registry
    storage = Storage(location, DatabaseMetrics(registry))
    return QuotaService(defaults or Defaults(), Prices(), registry, storage), storage


async def set_limits(location: Location, **table: object) -> None:
    database = Database(location)
    await database.open()
    found = parse_limits(table)
    await database.write(lambda c: limits.set_limits(c, SUBJECT, found))
    await database.close()


@pytest.fixture
def file(tmp_path: Path) -> Location:
    found = location_of(None, tmp_path)
    assert found is not None
    return found


async def reserve(of: Gate) -> object:
    quota = of.begin(CI)
    return UNLIMITED if quota is None else await quota.reserve("m", 10, 0, 0)


async def test_a_request_before_the_limits_are_known_waits_for_them(file: Location) -> None:
    await set_limits(file, tokens_per_day=15)
    service, storage = service_of(file)
    waiting = asyncio.ensure_future(reserve(service.gate))
    await asyncio.sleep(0)
    assert not waiting.done()
    service.start()
    held = await waiting
    assert held is not UNLIMITED
    with pytest.raises(Rejection) as error:
        await reserve(service.gate)
    assert error.value.problem.status == 429
    await storage.close()


async def test_a_file_without_limits_opens_no_database(file: Location) -> None:
    service, storage = service_of(file)
    service.start()
    assert await reserve(service.gate) is UNLIMITED
    assert storage.database is None
    await storage.close()
    assert not may_limit(file.path)
    database = Database(file)
    await database.open()
    await database.close()
    assert not may_limit(file.path)
    assert may_limit(None)
    await set_limits(file, rpm=3)
    assert may_limit(file.path)


async def test_without_the_database_a_request_is_refused_and_not_let_through(
    file: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "WAIT_SECONDS", 0.05)
    closed = Gate(lambda: None)
    with pytest.raises(Rejection) as error:
        await reserve(closed)
    assert (error.value.problem.status, error.value.problem.code) == (503, "database_unavailable")
    closed.open()
    assert await reserve(closed) is UNLIMITED


async def test_limits_of_the_deployment_are_kept_over_restarts(file: Location) -> None:
    defaults = Defaults({Level.KEY: parse_limits({"tokens_per_day": 25})})
    for expected in ("held", "held", "refused"):
        service, storage = service_of(file, defaults)
        service.start()
        try:
            held = await reserve(service.gate)
            held.settle(10, 0, 0)  # type: ignore[attr-defined]
            assert expected == "held"
        except Rejection:
            assert expected == "refused"
        await storage.close()


@contextmanager
def served(location: Location) -> Iterator[httpx.Client]:
    context = fake_context(ScriptedEngine(lambda request, choice: [97] * 50))
    context.storage = Storage(location, DatabaseMetrics(context.metrics.registry))
    registry = context.metrics.registry
    service = QuotaService(Defaults(), Prices(), registry, context.storage)
    context.quotas = service.gate
    service.gate.open()
    with serving(context) as url, httpx.Client(base_url=url, timeout=20) as http:
        yield http


def test_limits_are_set_over_http_and_followed(
    file: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(treasury, "POLL_SECONDS", 0.1)
    with served(file) as http:
        assert http.get("/admin/quotas").json() == {"quotas": []}
        body = {"level": "key", "name": "addr:127.0.0.1", "limits": {"rpm": 2, "tpd": 1000}}
        found = http.post("/admin/quotas", json=body).json()
        assert found["limits"] == {"requests_per_minute": 2, "tokens_per_day": 1000}
        deadline = time.monotonic() + 20
        while True:  # servers follow within a second or two
            answer = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
            if answer.status_code == 429:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "2 requests per minute" in answer.json()["error"]["message"]
        (shown,) = http.get("/admin/quotas").json()["quotas"]
        assert shown["name"] == "127.0.0.1"
        assert shown["used"]["tokens_per_day"] >= 2
        one = http.get("/admin/quotas/key/addr:127.0.0.1").json()
        assert one["limits"] == shown["limits"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"level": "person", "limits": {"rpm": 1}}, "level"),
        ({"level": "key", "name": "key:x", "limits": {"rmp": 1}}, "quotas"),
        ({"level": "key", "name": "key:x", "limits": {}}, "limits"),
        ({"level": "server", "name": "x", "limits": {"rpm": 1}}, "name"),
        ({"level": "key", "name": "x\r\ny", "limits": {"rpm": 1}}, "name"),
        ({"level": "key", "limits": {"rpm": 1}}, "name"),
    ],
)
def test_wrong_limits_are_a_400(file: Location, body: dict[str, object], param: str) -> None:
    with served(file) as http:
        answer = http.post("/admin/quotas", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_server_without_a_database_says_so() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        answer = httpx.get(f"{url}/admin/quotas")
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "no_database")
