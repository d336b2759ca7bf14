"""Message batches through Anthropic's own client, where it is installed; else by its shapes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine
from prometheus_client import CollectorRegistry

from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.storage import Storage
from tidemill.store.location import location_of

PLACE = "/v1/messages/batches"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    context = fake_context(ScriptedEngine())
    place = location_of(None, tmp_path_factory.mktemp("home"))
    assert place is not None
    context.storage = Storage(place, DatabaseMetrics(CollectorRegistry()))
    with serving(context) as url:
        yield httpx.Client(base_url=url, headers={"anthropic-version": "2023-06-01"})


def params(i: int, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Say {i}"}]
    return {"model": "m", "max_tokens": 5, "messages": messages, **changes}


def asked(count: int, *, model: str) -> dict[str, Any]:
    return {
        "requests": [{"custom_id": f"c{i}", "params": params(i, model=model)} for i in range(count)]
    }


@pytest.fixture(scope="module")
def model(http: httpx.Client) -> str:
    found: str = http.get("/v1/models").json()["data"][0]["id"]
    return found


def ended(http: httpx.Client, identity: str) -> dict[str, Any]:
    for _ in range(600):
        batch: dict[str, Any] = http.get(f"{PLACE}/{identity}").json()
        if batch["processing_status"] == "ended":
            return batch
        time.sleep(0.05)
    raise AssertionError(batch)


def test_a_batch_and_its_results(http: httpx.Client, model: str) -> None:
    body = asked(30, model=model)
    body["requests"][4]["params"]["max_tokens"] = -1
    made = http.post(PLACE, json=body)
    assert made.status_code == 200, made.text
    identity = made.json()["id"]
    assert identity.startswith("msgbatch_") and made.json()["type"] == "message_batch"
    done = ended(http, identity)
    counts = done["request_counts"]
    assert counts == {
        **{"processing": 0, "succeeded": 29, "errored": 1, "canceled": 0, "expired": 0}
    }
    answer = http.get(done["results_url"])
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["custom_id"] for row in rows] == [f"c{i}" for i in range(30)]
    assert rows[0]["result"]["type"] == "succeeded"
    assert rows[0]["result"]["message"]["role"] == "assistant"
    wrong = rows[4]["result"]
    assert wrong["type"] == "errored" and wrong["error"]["type"] == "error"
    assert "max_tokens" in wrong["error"]["error"]["message"]
    page = http.get(PLACE, params={"limit": 1}).json()
    assert page["data"][0]["id"] == identity and page["has_more"] is False
    assert http.delete(f"{PLACE}/{identity}").json()["type"] == "message_batch_deleted"
    assert http.get(f"{PLACE}/{identity}").status_code == 404


def test_cancelling(http: httpx.Client, model: str) -> None:
    identity = http.post(PLACE, json=asked(1500, model=model)).json()["id"]
    assert http.delete(f"{PLACE}/{identity}").status_code == 400
    assert http.get(f"{PLACE}/{identity}/results").status_code == 400
    said = http.post(f"{PLACE}/{identity}/cancel").json()
    assert said["processing_status"] in ("canceling", "ended")
    done = ended(http, identity)
    counts = done["request_counts"]
    assert counts["canceled"] and counts["canceled"] + counts["succeeded"] == 1500
    rows = http.get(f"{PLACE}/{identity}/results").text.splitlines()
    kinds = [json.loads(row)["result"]["type"] for row in rows]
    assert kinds.count("canceled") == counts["canceled"] and len(kinds) == 1500


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"requests": []}, "requests"),
        ({"requests": [{"custom_id": "a b", "params": {}}]}, "custom_id"),
        ({"requests": [{"custom_id": "a", "params": {"stream": True}}]}, "stream"),
        ({"requests": [{"custom_id": "a", "params": {}}] * 2}, "twice"),
        ({}, "requests"),
    ],
)
def test_bad_requests_name_the_field(http: httpx.Client, change: Any, word: str) -> None:
    answer = http.post(PLACE, json=change)
    assert answer.status_code == 400 and answer.json()["type"] == "error"
    assert word in answer.json()["error"]["message"]
