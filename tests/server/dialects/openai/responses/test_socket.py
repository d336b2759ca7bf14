"""OpenAI's WebSocket mode, spoken by OpenAI's own client and by a rude one."""

from __future__ import annotations

import json
import socket as sockets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from helpers.marked_model import Model, marked_model
from helpers.responses_api import check_order
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tidemill.server.access.limits import Limits
from tidemill.server.dialects.openai.responses import socket as served
from tidemill.server.transport import websocket

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture
def url(model: Model) -> str:
    return str(model.http.base_url).rstrip("/").replace("http", "ws") + "/v1/responses"


@pytest.fixture
def socket(url: str) -> Iterator[ClientConnection]:
    with connect(url) as made:
        yield made


def turn(socket: ClientConnection, **body: Any) -> list[dict[str, Any]]:
    """The events of one response."""
    socket.send(json.dumps({"type": "response.create", "model": "tiny", **body}))
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ENDS:
        text = socket.recv(timeout=20)
        EVENTS.validate_json(text)
        events.append(json.loads(text))
    return events


def test_openais_client(model: Model) -> None:
    model.text = "so it is"
    base = str(model.http.base_url).rstrip("/") + "/v1"
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
    with client.responses.connect() as connection:
        connection.response.create(model="tiny", input="Who?", store=False)
        for event in connection:
            if event.type == "response.completed":
                assert event.response.output_text == "so it is"
                break


def test_the_events_are_those_of_a_stream(socket: ClientConnection, model: Model) -> None:
    model.text = "two\nlines"
    events = turn(socket, input="Who?")
    check_order(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "two\nlines"
    stored = model.http.get(f"/v1/responses/{events[-1]['response']['id']}")
    assert stored.json()["status"] == "completed"


def test_the_latest_response_is_continued_though_it_is_not_stored(
    socket: ClientConnection, model: Model, url: str
) -> None:
    model.text = "One."
    first = turn(socket, input="Count", store=False)[-1]["response"]
    again = {"input": "On", "store": False, "previous_response_id": first["id"]}
    assert model.http.post("/v1/responses", json={**again, "model": "tiny"}).status_code == 404
    with connect(url) as other:
        (error,) = turn(other, **again)
        assert error["error"]["code"] == "previous_response_not_found"
    second = turn(socket, **again)[-1]["response"]
    asked = bytes(t for t in model.engine.requests[-1].prompt_token_ids if t < 256)
    assert b"Count" in asked and b"One." in asked and b"On" in asked
    # Only the latest is kept.
    assert turn(socket, **again)[-1]["type"] == "error"
    # What failed to be continued is forgotten.
    wrong = {"previous_response_id": second["id"], "input": [{"type": "nonsense"}]}
    assert turn(socket, **wrong)[-1]["status"] == 400
    (error,) = turn(socket, input="x", previous_response_id=second["id"])
    assert error["error"]["code"] == "previous_response_not_found"


def test_warming_up(socket: ClientConnection, model: Model) -> None:
    model.text = "Hello."
    events = turn(socket, input="Count", instructions="Be brief.", generate=False, store=False)
    final = events[-1]["response"]
    assert [e["type"] for e in events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert final["output"] == [] and final["usage"]["output_tokens"] == 0
    assert model.engine.requests[-1].sampling.max_tokens == 1
    after = turn(socket, input="On", previous_response_id=final["id"])[-1]["response"]
    asked = bytes(t for t in model.engine.requests[-1].prompt_token_ids if t < 256)
    assert b"Count" in asked and after["output"]


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ('{"type": "response.steer"}', "type"),
        ("[]", "type"),
        ("{", None),
        ('{"type": "response.create", "background": true, "input": "a"}', "background"),
        ('{"type": "response.create", "generate": 1, "input": "a"}', "generate"),
        ('{"type": "response.create", "stream_id": 1, "input": "a"}', "stream_id"),
        ('{"type": "response.create", "temprature": 1, "input": "a"}', "temprature"),
        ('{"type": "response.create", "model": "tiny"}', "input"),
        ('{"type": "response.create", "model": "dodo", "input": "a"}', "model"),
    ],
)
def test_what_is_wrong_is_an_event_and_the_connection_lives(
    socket: ClientConnection, event: str, param: str | None
) -> None:
    socket.send(event)
    text = socket.recv(timeout=20)
    EVENTS.validate_json(text)
    error = json.loads(text)
    assert error["type"] == "error" and error["status"] in (400, 404)
    assert error["error"]["param"] == param and error["error"]["message"]
    assert turn(socket, input="Who?")[-1]["type"] == "response.completed"


def test_responses_follow_one_another_and_carry_their_label(socket: ClientConnection) -> None:
    for label in ("one", "two"):
        event = {"type": "response.create", "model": "tiny", "input": "Who?", "stream_id": label}
        socket.send(json.dumps(event))
    found: list[dict[str, Any]] = []
    while sum(e["type"] == "response.completed" for e in found) < 2:
        text = socket.recv(timeout=20)
        EVENTS.validate_json(text)
        found.append(json.loads(text))
    labels = [e["stream_id"] for e in found]
    assert labels == sorted(labels) and set(labels) == {"one", "two"}


def test_a_client_that_leaves_ends_its_response(model: Model, url: str) -> None:
    before = len(model.engine.cancelled)
    model.text, model.engine.step_seconds = "a" * 200, 0.05
    try:
        with connect(url) as socket:
            socket.send(json.dumps({"type": "response.create", "model": "tiny", "input": "Who?"}))
            while json.loads(socket.recv(timeout=20))["type"] != "response.output_text.delta":
                pass
        deadline = time.monotonic() + 20
        while len(model.engine.cancelled) == before:
            assert time.monotonic() < deadline, "the generation goes on"
            time.sleep(0.02)
    finally:
        model.engine.step_seconds = 0.0


def test_what_ends_a_connection(model: Model, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(url) as socket:
        socket.send(b"bytes")
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=20)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1003
    monkeypatch.setattr(served, "CONNECTION_SECONDS", 0.0)
    with connect(url) as socket:
        error = json.loads(socket.recv(timeout=20))
        assert error["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=20)


def test_a_silent_peer_is_asked_and_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_SECONDS", 0.1)
    with connect(url) as socket:  # answers pings
        time.sleep(0.5)
        assert turn(socket, input="Who?")[-1]["type"] == "response.completed"
    host, port = url.removeprefix("ws://").partition("/")[0].split(":")
    head = "GET /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    with sockets.create_connection((host, int(port)), timeout=20) as silent:
        silent.sendall(head.encode())
        received = b""
        while data := silent.recv(4096):
            received += data
    assert received.startswith(b"HTTP/1.1 101 ")
    assert b"\x89\x00" in received and b"no pong came" in received


def test_a_server_that_stops_ends_idle_connections() -> None:
    with marked_model() as model:
        address = str(model.http.base_url).rstrip("/").replace("http", "ws") + "/v1/responses"
        socket = connect(address)
        model.text = "so"
        assert turn(socket, input="Who?")[-1]["type"] == "response.completed"
    with pytest.raises(ConnectionClosed) as caught:
        socket.recv(timeout=20)
    assert caught.value.rcvd is not None and caught.value.rcvd.code == 1001


def test_what_is_no_handshake_is_answered_in_http(model: Model, url: str) -> None:
    http: httpx.Client = model.http
    plain = http.get("/v1/responses")
    assert plain.status_code == 426 and plain.headers["upgrade"] == "websocket"
    with pytest.raises(InvalidStatus) as caught:
        connect(url, origin="https://evil.example")  # type: ignore[arg-type]
    assert caught.value.response.status_code == 403


def test_messages_are_counted_like_bodies(model: Model, url: str) -> None:
    with connect(url) as socket:
        socket.send("x" * 100_000)
        assert json.loads(socket.recv(timeout=20))["error"]["code"] == "invalid_json"
    deadline = time.monotonic() + 20
    while model.context.bodies.total:
        assert time.monotonic() < deadline, "the memory is not given back"
        time.sleep(0.02)


def test_a_message_for_which_there_is_no_memory_ends_the_connection() -> None:
    limits = Limits(max_bodies_bytes=50_000)
    with marked_model(limits=limits) as model:
        address = str(model.http.base_url).rstrip("/").replace("http", "ws") + "/v1/responses"
        with connect(address) as socket:
            socket.send("x" * 100_000)
            with pytest.raises(ConnectionClosed) as caught:
                socket.recv(timeout=20)
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1013
        assert not model.context.bodies.total
