"""A chat asked twice, streamed and not, and the streamed answer put together as a client would."""

from __future__ import annotations

import json
from typing import Any

import httpx

PATH = "/v1/chat/completions"


def whole(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The answer in one piece."""
    answer = http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def events(http: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream."""
    answer = http.post(PATH, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    found = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert all("error" not in event for event in found), found
    return found


def joined(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Per choice: the message, the finish reason and the logprobs of a stream."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(
                part["index"], {"message": {}, "finish_reason": None, "logprobs": []}
            )
            assert choice["finish_reason"] is None, "nothing comes after the end"
            choice["finish_reason"] = part["finish_reason"]
            if part["logprobs"] is not None:
                choice["logprobs"] += part["logprobs"]["content"]
            _merge(choice["message"], part["delta"])
    return choices


def _merge(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            calls = message.setdefault(key, [])
            for part in value:
                if part["index"] == len(calls):
                    calls.append({"id": part["id"], "type": part["type"], "function": {
                        "name": part["function"]["name"], "arguments": ""}})  # fmt: skip
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        elif isinstance(value, list):
            message.setdefault(key, []).extend(value)
        elif message.get(key) is None:
            message[key] = value
        elif value is not None:
            message[key] += value


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what differs between two answers (ids) or is nothing (nulls)."""
    found = {k: v for k, v in message.items() if v is not None and k != "refusal"}
    if "tool_calls" in found:
        found["tool_calls"] = [c["function"] for c in found["tool_calls"]]
    return found


def agree(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Ask both ways, check that the answers are one, and return it."""
    one, chunks = whole(http, body), events(http, body)
    parts = joined(chunks)
    assert len(one["choices"]) == len(parts)
    for choice in one["choices"]:
        part = parts[choice["index"]]
        assert plain(choice["message"]) == plain(part["message"])
        assert ("content" in choice["message"]) and (
            choice["message"]["content"] == part["message"]["content"]
        )
        assert choice["finish_reason"] == part["finish_reason"]
        entries = choice["logprobs"]["content"] if choice["logprobs"] else []
        assert entries == part["logprobs"]
    return one
