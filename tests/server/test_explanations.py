"""Explanations that the database keeps: found after they left memory, by those who may see all."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.prices import Prices
from tidemill.metrics.database import DatabaseMetrics
from tidemill.server import explanations
from tidemill.server.explanations import keep_explanations
from tidemill.server.storage import Storage
from tidemill.store.location import location_of
from tidemill.telemetry.phases import Milestones
from tidemill.telemetry.recent import Recent, Story
from tidemill.telemetry.record import RequestRecord


def test_a_request_that_left_memory_is_in_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanations, "WRITE_SECONDS", 0.05)
    context = fake_context(ScriptedEngine(), explain=True)
    location = location_of(None, tmp_path)
    assert location is not None
    context.storage = Storage(location, DatabaseMetrics(context.metrics.registry))
    context.keep_recent(1, Prices())
    keep_explanations(context, 3600.0)
    with serving(context) as url, httpx.Client(base_url=url, timeout=30) as http:
        body = {"model": "tiny", "prompt": "secret words", "max_tokens": 2}
        http.post("/v1/completions", json=body, headers={"x-request-id": "old"})
        whole = http.get("/admin/requests/old").json()
        for i in range(2):
            http.post("/v1/completions", json=body, headers={"x-request-id": f"new{i}"})
        deadline = time.monotonic() + 20
        while (answer := http.get("/admin/requests/old")).status_code != 200:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.02)
        assert answer.json() == whole
        missing = http.get("/admin/requests/none")
        assert missing.status_code == 404 and "or in the database" in missing.text
    assert b"secret" not in (tmp_path / "tidemill.db").read_bytes()


def test_what_waits_for_the_database_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanations, "MOST_WAITING", 3)
    recent = Recent(2)
    keeper = explanations.Keeper(recent, "USD", lambda: None)
    for i in range(5):
        recent.end(i, Story(RequestRecord(f"r{i}", 0), Milestones(0.0, ended=1.0), None))
    assert keeper.lost == 2
    assert [story.record.id for story in keeper.waiting] == ["r2", "r3", "r4"]
