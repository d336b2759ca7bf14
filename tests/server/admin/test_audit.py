"""/admin/audit: the rows, whether the log is whole, and who may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine
from sqlalchemy import update

from tidemill.contract.prices import Prices
from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.context import ServerContext
from tidemill.server.records import keep_records
from tidemill.server.storage import Storage
from tidemill.store.location import location_of
from tidemill.store.tables.audit import AUDIT_ROWS

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "secret words"}], "max_tokens": 4}


@pytest.fixture
def context(tmp_path: Path) -> ServerContext:
    context = fake_context(ScriptedEngine(lambda request, choice: [97] * 50))
    location = location_of(None, tmp_path)
    assert location is not None
    context.home = tmp_path
    context.storage = Storage(location, DatabaseMetrics(context.metrics.registry))
    keep_records(context, tmp_path, Prices())
    return context


@pytest.fixture
def url(context: ServerContext) -> Iterator[str]:
    with serving(context) as found:
        yield found


def get(url: str, path: str, **params: Any) -> Any:
    response = httpx.get(url + path, params=params)
    assert response.status_code == 200, response.text
    return response.json()


def test_rows_are_the_latest_first_and_have_no_content(url: str) -> None:
    for _ in range(3):
        httpx.post(f"{url}/v1/chat/completions", json=CHAT)
    httpx.post(f"{url}/admin/teams", json={"name": "search"})
    rows = get(url, "/admin/audit")["rows"]
    assert [row["at"] for row in rows] == sorted((row["at"] for row in rows), reverse=True)
    assert sum(row["kind"] == "request" for row in rows) >= 3
    assert "secret words" not in str(rows)
    [act] = [row for row in get(url, "/admin/audit", acts="true")["rows"] if "team" in row["kind"]]
    assert act["detail"] is not None and act["actor"]
    assert len(get(url, "/admin/audit", limit=2)["rows"]) == 2
    assert get(url, "/admin/audit", before=rows[-1]["at"])["rows"] == []


def test_parameters_are_checked(url: str) -> None:
    for params, name in (({"limit": "0"}, "limit"), ({"before": "x"}, "before"), ({"a": "1"}, "a")):
        response = httpx.get(f"{url}/admin/audit", params=params)
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_a_changed_row_is_found(context: ServerContext, url: str) -> None:
    for _ in range(3):
        httpx.post(f"{url}/v1/chat/completions", json=CHAT)
    found = get(url, "/admin/audit/verification")
    assert found["valid"] and sum(chain["rows"] for chain in found["chains"]) >= 3
    row = get(url, "/admin/audit")["rows"][0]

    async def change() -> None:
        location = location_of(None, context.home)
        assert location is not None
        from tidemill.store.database import Database

        database = Database(location)
        await database.open()
        where = (AUDIT_ROWS.c.chain == row["chain"]) & (AUDIT_ROWS.c.seq == row["seq"])
        await database.write(lambda c: c.execute(update(AUDIT_ROWS).where(where).values(actor="x")))
        await database.close()

    asyncio.run(change())
    found = get(url, "/admin/audit/verification")
    assert not found["valid"]
    [fault] = [chain["fault"] for chain in found["chains"] if chain["fault"]]
    assert str(row["seq"]) in fault


def test_without_a_database_it_says_so() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        for path in ("/admin/audit", "/admin/audit/verification"):
            assert httpx.get(url + path).status_code == 501


def test_the_blocks_of_a_cache() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        [found] = get(url, "/admin/blocks")["models"]
    assert found == {
        **{"model": "tiny", "blocks": 8, "used": 3, "shared": 2, "cached": 1},
        "cells": "uss.c...",
    }
