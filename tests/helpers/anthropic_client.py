"""A message asked for twice, streamed and not, and the stream put together as a client would."""

from __future__ import annotations

import json
from typing import Any

import httpx

PATH = "/v1/messages"


def whole(http: httpx.Client, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    """The answer in one piece."""
    answer = http.post(PATH, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def parsed(text: str) -> list[dict[str, Any]]:
    """The events of a stream; each is named as its type says."""
    found = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        document = json.loads(data.removeprefix("data: "))
        assert name == f"event: {document['type']}"
        found.append(document)
    return found


def events(http: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream that must succeed."""
    answer = http.post(PATH, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = parsed(answer.text)
    assert not [e for e in found if e["type"] == "error"], found
    return found


def joined(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream makes; its order is checked."""
    stream = [e for e in stream if e["type"] != "ping"]
    start, *middle, delta, stop = stream
    assert start["type"] == "message_start" and stop == {"type": "message_stop"}
    assert delta["type"] == "message_delta"
    message: dict[str, Any] = start["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    open_block: dict[str, Any] | None = None
    arguments = ""
    for event in middle:
        kind = event["type"]
        if kind == "content_block_start":
            assert open_block is None and event["index"] == len(message["content"])
            open_block, arguments = event["content_block"], ""
            continue
        assert open_block is not None and event["index"] == len(message["content"])
        if kind == "content_block_stop":
            if open_block["type"] == "tool_use":
                assert open_block["input"] == {}
                open_block["input"] = json.loads(arguments or "{}")
            message["content"].append(open_block)
            open_block = None
            continue
        part = event["delta"]
        if part["type"] == "input_json_delta":
            arguments += part["partial_json"]
        else:
            member = {"text_delta": "text", "thinking_delta": "thinking"}.get(
                part["type"], "signature"
            )
            open_block[member] += part[member]
    assert open_block is None
    usage = {**message["usage"], **delta["usage"]}
    return {**message, **delta["delta"], "usage": usage}


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what differs between two answers: ids, and how much came from the cache."""
    content = [{k: v for k, v in b.items() if k != "id"} for b in message["content"]]
    usage = {k: v for k, v in message["usage"].items() if "input" not in k}
    prompt = sum(v for k, v in message["usage"].items() if "input" in k)
    return {**message, "id": "", "content": content, "usage": {**usage, "prompt": prompt}}


def agree(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Ask both ways, check that the answers are one, and return it."""
    one = whole(http, body)
    assert plain(one) == plain(joined(events(http, body)))
    return one
