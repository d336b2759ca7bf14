"""/v1/chats: what the page keeps on the server, a row a message, for its own key alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.security import Security
from tidemill.server.context import ServerContext
from tidemill.server.retention import keep_content
from tidemill.server.storage import Storage
from tidemill.store.location import location_of

KEYS = ["first-key-0123456789", "second-key-0123456789"]
FIRST, SECOND = ({"Authorization": f"Bearer {key}"} for key in KEYS)


@pytest.fixture
def context(tmp_path: Path) -> ServerContext:
    context = fake_context(ScriptedEngine())
    location = location_of(None, tmp_path)
    assert location is not None
    context.storage = Storage(location, DatabaseMetrics(context.metrics.registry))
    keep_content(context, tmp_path)
    return context


@pytest.fixture
def http(context: ServerContext) -> Iterator[httpx.Client]:
    security = Security(keys=StaticKeys(KEYS))
    with serving(context, security) as url, httpx.Client(base_url=url, headers=FIRST) as client:
        yield client


def message(number: int, text: str) -> dict[str, object]:
    return {"id": f"m{number}", "number": number, "data": text}


def test_messages_are_rows_that_change_one_by_one(http: httpx.Client, tmp_path: Path) -> None:
    body = {"data": "walnut", "messages": [message(1, "hazel"), message(0, "almond")]}
    assert http.put("/v1/chats/a1", json=body).status_code == 204
    body = {"data": "pecan", "messages": [message(2, "cashew")], "gone": ["m0"]}
    assert http.put("/v1/chats/a1", json=body).status_code == 204
    assert http.get("/v1/chats").json() == {"chats": [{"id": "a1", "data": "pecan"}]}
    found = http.get("/v1/chats/a1").json()["messages"]
    assert [one["data"] for one in found] == ["hazel", "cashew"]
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("tidemill.db*"))
    assert b"chat-a1" in stored
    for word in (b"walnut", b"pecan", b"hazel", b"cashew"):
        assert word not in stored, "texts are encrypted"
    assert http.delete("/v1/chats/a1").status_code == 204
    assert http.get("/v1/chats").json() == {"chats": []}
    assert http.get("/v1/chats/a1").status_code == 404


def test_another_key_sees_and_changes_nothing(http: httpx.Client) -> None:
    http.put("/v1/chats/a1", json={"data": "x", "messages": [message(0, "y")]})
    assert http.get("/v1/chats", headers=SECOND).json() == {"chats": []}
    assert http.get("/v1/chats/a1", headers=SECOND).status_code == 404
    other = http.put("/v1/chats/a1", json={"data": "z"}, headers=SECOND)
    assert other.status_code == 404
    http.delete("/v1/chats/a1", headers=SECOND)
    assert http.get("/v1/chats").json()["chats"] == [{"id": "a1", "data": "x"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("a_1", {"data": "x"}, "chat"),
        ("a" * 49, {"data": "x"}, "chat"),
        ("a1", {"data": "x", "messages": [{"id": "m"}]}, "messages"),
        ("a1", {"data": "x", "messages": [message(-1, "x")]}, "messages"),
        ("a1", {"messages": []}, "data"),
    ],
)
def test_what_is_wrong_is_named(
    http: httpx.Client, path: str, body: dict[str, object], param: str
) -> None:
    answer = http.put(f"/v1/chats/{path}", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_without_kept_content_it_says_so() -> None:
    with serving(fake_context(ScriptedEngine())) as url:
        answer = httpx.get(f"{url}/v1/chats")
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "no_content_kept")
        assert httpx.get(f"{url}/admin/whoami").json()["content"] is False
