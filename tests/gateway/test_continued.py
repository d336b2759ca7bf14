"""Streams of each dialect whose target dies, and what the client has in the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.gateway import door, streamed
from helpers.scripted_target import Abort, Got, ScriptedTarget, Send, begin, chunk, running

Event = dict[str, Any]


def _message(words: Sequence[str], identity: str) -> list[Event]:
    def block(index: int, kind: str, **delta: str) -> Event:
        return {"type": kind, "index": index, **({"delta": delta} if delta else {})}

    return [
        {"type": "message_start", "message": {"id": f"msg_{identity}", "usage": {}}},
        {**block(0, "content_block_start"), "content_block": {"type": "thinking", "thinking": ""}},
        block(0, "content_block_delta", type="thinking_delta", thinking="hm"),
        block(0, "content_block_delta", type="signature_delta", signature=f"sealed by {identity}"),
        block(0, "content_block_stop"),
        {**block(1, "content_block_start"), "content_block": {"type": "text", "text": ""}},
        *(block(1, "content_block_delta", type="text_delta", text=word) for word in words),
        block(1, "content_block_stop"),
        {
            **block(2, "content_block_start"),
            "content_block": {"type": "tool_use", "id": f"toolu_{identity}", "name": "f"},
        },
        block(2, "content_block_delta", type="input_json_delta", partial_json='{"a":'),
        block(2, "content_block_delta", type="input_json_delta", partial_json="1}"),
        block(2, "content_block_stop"),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
        {"type": "message_stop"},
    ]


def _response(words: Sequence[str], identity: str) -> list[Event]:
    whole = "".join(words)
    response = {"id": f"resp_{identity}", "created_at": len(identity), "output": []}
    item = {"id": f"item_{identity}", "type": "message"}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": whole}
    done = {**item, "content": [part]}
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **place, "delta": word} for word in words),
        {"type": "response.output_text.done", **place, "text": whole},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": {**response, "output": [done]}},
    ]
    return [{**event, "sequence_number": i} for i, event in enumerate(events)]


def _ollama(words: Sequence[str], identity: str) -> list[Event]:
    calls = [
        {"id": f"{identity}{i}", "function": {"index": i, "name": "f", "arguments": {}}}
        for i in range(2)
    ]
    said = [{"role": "assistant", "content": word} for word in words]
    messages = [*said, *({"role": "assistant", "content": "", "tool_calls": [c]} for c in calls)]
    lines = [{"message": message, "done": False} for message in messages]
    return [*lines, {"message": {"content": ""}, "done": True, "done_reason": "stop"}]


MAKERS = {"/v1/messages": _message, "/v1/responses": _response, "/api/chat": _ollama}


def _bytes(path: str, event: Event) -> bytes:
    data = json.dumps(event).encode()
    if path.startswith("/api/"):
        return data + b"\n"
    return b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n"


def _scripted(path: str, events: Sequence[Event], *, dies: bool) -> ScriptedTarget:
    async def script(got: Got, send: Send) -> None:
        await begin(
            send, "application/x-ndjson" if path.startswith("/api/") else "text/event-stream"
        )
        for event in events:
            await chunk(send, _bytes(path, event))
        if dies:
            raise Abort
        await chunk(send, b"")

    return ScriptedTarget(script)


def _decoded(text: str) -> list[Event]:
    lines = (line.removeprefix("data: ") for line in text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def _merged(events: Sequence[Event]) -> list[Event]:
    """Growing texts joined, so that it does not matter how they were cut."""
    found: list[Event] = []
    for event in events:
        name, where = next(
            (
                (name, where)
                for where in (event.get("delta"), event.get("message"), event)
                if isinstance(where, dict)
                for name in ("text", "partial_json", "thinking", "content", "delta")
                if isinstance(where.get(name), str) and where[name]
            ),
            ("", {}),
        )
        key = {**event, "sequence_number": 0, "delta": None, "message": None, "at": name}
        if name and found and found[-1]["key"] == key:
            found[-1]["text"] += where[name]
        else:
            found.append({"key": key, "text": where.get(name, ""), "event": event})
    return found


@pytest.mark.parametrize("path", MAKERS)
def test_it_is_as_if_one_had_answered(path: str) -> None:
    make, words = MAKERS[path], ("The ", "quick ", "brown ", "fox")
    first = make(words, "first")
    second = make(("The qui", "ck brown", " fox"), "second")
    wanted = [one["text"] for one in _merged(first)]
    for cut in range(1, len(first)):
        one = _scripted(path, first[:cut], dies=True)
        two = _scripted(path, second, dies=False)
        rows = [
            {"at": one, "kind": "tidemill"},
            {"at": two, "kind": "tidemill", "price": {"output": 1}},
        ]
        with running(one, two), door(rows, routing={"policy": "cost"}) as gateway:
            status, text = streamed(gateway.http, path, {"model": "m", "stream": True})
        events = _decoded(text)
        assert status == 200 and "target_lost" not in text, cut
        assert [found["text"] for found in _merged(events)] == wanted, cut
        for name in ("msg_", "resp_", "item_", "toolu_", "sealed by "):
            assert not (f"{name}first" in text and f"{name}second" in text), (cut, name)
        numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
        assert numbers == list(range(len(numbers)))
        # The seed, where the dialect has none.
        assert one.got[0].headers["x-tidemill-seed"] == two.got[0].headers["x-tidemill-seed"]


@pytest.mark.parametrize("path", MAKERS)
def test_another_answer_is_an_error(path: str) -> None:
    make = MAKERS[path]
    first = make(("The ", "quick "), "first")
    cut = next(i for i, event in enumerate(first) if "quick " in json.dumps(event)) + 1
    one = _scripted(path, first[:cut], dies=True)
    two = _scripted(path, make(("The ", "slow "), "second"), dies=False)
    rows = [
        {"at": one, "kind": "tidemill"},
        {"at": two, "kind": "tidemill", "price": {"output": 1}},
    ]
    with running(one, two), door(rows, routing={"policy": "cost"}) as gateway:
        _, text = streamed(gateway.http, path, {"model": "m", "stream": True})
    assert "answers differently" in text and "slow" not in text
