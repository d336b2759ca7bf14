"""Responses over HTTP, streamed and whole, validated by the types of OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_IDS = ("id", "call_id", "item_id")


def create(http: httpx.Client, **body: Any) -> dict[str, Any]:
    """A whole response, valid."""
    answer = http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    Response.model_validate_json(answer.content)
    found: dict[str, Any] = answer.json()
    return found


def refused(http: httpx.Client, status: int = 400, **body: Any) -> dict[str, Any]:
    """The error of a request that must be refused."""
    answer = http.post("/v1/responses", json=body)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, valid and in order."""
    events = []
    for part in filter(None, text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
        if not fields:
            continue
        event = json.loads(fields["data"])
        assert fields["event"] == event["type"]
        _EVENTS.validate_json(fields["data"])
        events.append(event)
    return events


def stream(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed response, checked as a whole."""
    answer = http.post("/v1/responses", json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    check_order(events)
    return events


def check_order(events: list[dict[str, Any]]) -> None:
    """Numbers rise by one, every item is opened and closed once, and its deltas are its text."""
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    final = events[-1]["response"]
    added = [e for e in events if e["type"] == "response.output_item.added"]
    done = [e for e in events if e["type"] == "response.output_item.done"]
    assert [e["item"] for e in done] == final["output"]
    assert [e["item"]["id"] for e in added] == [i["id"] for i in final["output"]]
    assert [e["output_index"] for e in added] == list(range(len(added)))
    assert all(e["item"]["status"] == "in_progress" for e in added)
    for item in final["output"]:
        mine = [e for e in events if e.get("item_id") == item["id"]]
        deltas = "".join(e["delta"] for e in mine if e["type"] in _DELTAS)
        assert deltas == _said(item), item
        # What ends with done comes after all of its deltas.
        kinds = [e["type"].rpartition(".")[0] for e in mine]
        for kind in set(kinds):
            last = max(i for i, k in enumerate(kinds) if k == kind)
            assert mine[last]["type"].endswith((".done", ".added")), kind


_DELTAS = (
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)


def _said(item: dict[str, Any]) -> str:
    for name in ("arguments", "input"):
        if isinstance(item.get(name), str):
            found: str = item[name]
            return found
    return "".join(part["text"] for part in item.get("content", ()))


def without_ids(value: Any) -> Any:
    """A document without what differs from answer to answer."""
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if isinstance(value, dict):
        skipped = (*_IDS, "created_at", "completed_at", "previous_response_id", "conversation")
        return {k: without_ids(v) for k, v in value.items() if k not in skipped}
    return value


def both(http: httpx.Client, **body: Any) -> dict[str, Any]:
    """Whole and streamed, which must agree (promise 8)."""
    whole = create(http, **body)
    events = stream(http, **body)
    streamed = events[-1]["response"]
    assert events[-1]["type"] == f"response.{streamed['status']}"
    assert without_ids(streamed) == without_ids(whole)
    return whole


def text_of(response: dict[str, Any]) -> str:
    """The text of its messages."""
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
