"""/admin/usage and OpenAI's usage endpoints: the numbers, and who sees which."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine
from sqlalchemy import select

from tidemill.contract.prices import Prices
from tidemill.metrics.database import DatabaseMetrics
from tidemill.server import records
from tidemill.server.access.auth import Principal
from tidemill.server.access.keys import Owner, Role
from tidemill.server.errors import Rejection
from tidemill.server.records import keep_records
from tidemill.server.storage import Storage
from tidemill.server.usage import narrowed
from tidemill.store import audit
from tidemill.store.location import location_of
from tidemill.store.tables.audit import AUDIT_ROWS
from tidemill.store.usage import Query
from tidemill.telemetry.record import RequestRecord

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
DAY = 86400


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home: Path = tmp_path_factory.mktemp("home")
    context = fake_context(ScriptedEngine(lambda request, choice: [97] * 50))
    location = location_of(None, home)
    assert location is not None
    context.storage = Storage(location, DatabaseMetrics(context.metrics.registry))
    keep_records(context, home, Prices.parse({"tiny": {"output": 1_000_000}}, currency="EUR"))
    with serving(context) as found:
        for _ in range(3):
            httpx.post(f"{found}/v1/chat/completions", json=CHAT)
        httpx.post(f"{found}/v1/embeddings", json={"model": "tiny", "input": ["a", "b"]})
        httpx.post(f"{found}/v1/chat/completions", json=CHAT | {"temperature": -1})
        yield found


def get(url: str, path: str, **params: Any) -> Any:
    response = httpx.get(url + path, params=params)
    return response.json() if response.status_code == 200 else response


def test_a_report_is_of_what_was_answered_just_now(url: str) -> None:
    found = get(url, "/admin/usage", by="model,operation")
    [embedded, generated] = found["rows"]
    assert (generated["operation"], generated["requests"]) == ("generate", 3)
    assert (generated["generated_tokens"], generated["cost"]) == (12, 12.0)
    assert (embedded["operation"], embedded["inputs"]) == ("embed", 2)
    assert found["currency"] == "EUR" and found["lost_requests"] == 0
    total = get(url, "/admin/usage", since="1h")["total"]
    assert (total["requests"], total["refused"]) == (4, 1)
    assert total["refusals"] == {"invalid_value": 1}
    assert get(url, "/admin/usage", until="1d")["rows"] == []


def test_dimensions_may_be_repeated_and_every_row_has_the_same_columns(url: str) -> None:
    found = get(url, "/admin/usage", by=["key", "model"])
    assert found["by"] == ["key", "model"]
    for row in found["rows"]:
        assert (row["key"], row["key_name"]) == ("", None)
    text = httpx.get(url + "/admin/usage?by=key&by=model&format=csv").text
    assert text.splitlines()[0].startswith("key,key_name,model,requests,")
    assert any(line.startswith(",,tiny,") for line in text.splitlines())


def test_what_waits_and_what_was_lost_is_exported(url: str) -> None:
    lines = httpx.get(url + "/metrics").text.splitlines()
    assert "tidemill_usage_records_lost_total 0.0" in lines
    assert any(line.startswith("tidemill_usage_records_waiting ") for line in lines)


def test_csv(url: str) -> None:
    response = httpx.get(url + "/admin/usage", params={"by": "model", "format": "csv"})
    assert response.headers["content-type"].startswith("text/csv")
    [line] = [line for line in response.text.splitlines() if line.startswith("tiny,")]
    assert line.split(",")[1] == "4"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"by": "x"}, "by"),
        ({"since": "x"}, "since"),
        ({"keys": "a"}, "keys"),
        ({"key": "a"}, "key"),
        ({"format": "xml"}, "format"),
        ({"since": ["1d", "2d"]}, "since"),
    ],
)
def test_wrong_parameters_are_named(url: str, params: dict[str, Any], param: str) -> None:
    response = get(url, "/admin/usage", **params)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_openais_client_reads_it(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", admin_api_key="x", max_retries=0)
    start = int(time.time()) - DAY
    usage = client.admin.organization.usage
    page = usage.completions(start_time=start, group_by=["model"])
    results = [result for bucket in page.data for result in bucket.results]
    assert [(r.model, r.num_model_requests, r.output_tokens) for r in results] == [("tiny", 3, 12)]
    assert page.has_more is False and len(page.data) == 2
    page = usage.embeddings(start_time=start, bucket_width="1h", limit=30)
    assert [b.results[0].num_model_requests for b in page.data if b.results] == [1]
    page = usage.costs(start_time=start, group_by=["line_item"])
    [cost] = [result for bucket in page.data for result in bucket.results]
    assert (cost.line_item, cost.amount.value, cost.amount.currency) == ("tiny", 12.0, "eur")


def test_pages_follow_each_other(url: str) -> None:
    path, start = "/v1/organization/usage/completions", int(time.time()) // DAY * DAY - 3 * DAY
    page, seen, requests = get(url, path, start_time=start, limit=1), [], 0
    while True:
        [bucket] = page["data"]
        seen.append(bucket["start_time"])
        requests += sum(result["num_model_requests"] for result in bucket["results"])
        if not page["has_more"]:
            break
        page = get(url, path, start_time=start, limit=1, page=page["next_page"])
    assert requests == 3 and seen == [start + n * DAY for n in range(len(seen))]


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({}, "start_time"),
        ({"start_time": "0", "bucket_width": "1m"}, "bucket_width"),
        ({"start_time": "0", "limit": "99"}, "limit"),
        ({"start_time": "0", "group_by": "x"}, "group_by"),
    ],
)
def test_openais_parameters_are_checked(url: str, params: dict[str, str], param: str) -> None:
    response = get(url, "/v1/organization/usage/completions", **params)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def _principal(role: Role, team: str = "", key: str = "") -> Principal:
    return Principal("key:n", "n", role, key_id=key, owner=Owner(team=team))


def test_who_sees_what() -> None:
    everything = Query(by=("key",))
    for role in (Role.ADMIN, Role.AUDITOR):
        assert narrowed(everything, _principal(role)) == everything
    manager, user = _principal(Role.MANAGER, team="t1"), _principal(Role.USER, "t1", "k1")
    assert narrowed(everything, manager).teams == ("t1",)
    assert narrowed(Query(teams=("t1",)), manager).teams == ("t1",)
    assert narrowed(everything, user).keys == ("k1",)
    assert narrowed(everything, _principal(Role.USER)).keys == ("key:n",)
    for query, principal in (
        (Query(teams=("t2",)), manager),
        (Query(teams=("t1", "t2")), manager),
        (Query(keys=("k2",)), user),
    ):
        with pytest.raises(Rejection):
            narrowed(query, principal)


async def test_servers_remove_what_is_older_than_the_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PRUNE_SECONDS", 0.05)
    monkeypatch.setattr(records, "PAUSE_SECONDS", 0.0)
    context = fake_context(ScriptedEngine())
    location = location_of(None, tmp_path)
    assert location is not None
    context.storage = Storage(location, DatabaseMetrics(context.metrics.registry))
    recorder = keep_records(context, tmp_path, Prices())
    now = int(time.time() * 1000)
    for n in range(5):
        recorder.add(RequestRecord(f"r{n}", at=now - (4 - n) * DAY * 1000))
    await recorder.flush()
    database = await context.storage.opened()
    await database.write(lambda c: audit.set_retention(c, "cli:x", 2 * DAY + 60))

    def kept(c: Any) -> list[str]:
        rows = AUDIT_ROWS.c
        return list(c.execute(select(rows.subject).where(rows.kind == "request")).scalars())

    deadline = time.monotonic() + 10
    while len(await database.read(kept)) > 3 and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert sorted(await database.read(kept)) == ["r2", "r3", "r4"]
    await recorder.close()
    await context.storage.close()


def test_without_a_database_it_says_so() -> None:
    with serving(fake_context(ScriptedEngine())) as found:
        response = httpx.get(found + "/admin/usage")
    assert (response.status_code, response.json()["error"]["code"]) == (501, "no_database")
