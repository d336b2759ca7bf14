"""One dialect at the client, the other at the target."""

from __future__ import annotations

import json
from typing import Any

from helpers.gateway import ASK, door, streamed, words_of
from helpers.scripted_target import (
    USAGE,
    Got,
    ScriptedTarget,
    Send,
    begin,
    chunk,
    delta,
    event,
    running,
    whole,
)

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "d", "parameters": {"type": "object"}},
}
OWN_TOOL = {"name": "add", "description": "d", "input_schema": {"type": "object"}}
CALL = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}


async def _messages(got: Got, send: Send) -> None:
    """A target of Anthropic's: a text and a tool call."""
    usage = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3}
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
    ]
    message = {"id": "msg1", "type": "message", "role": "assistant", "usage": usage}
    if not got.json.get("stream"):
        await whole(send, {**message, "content": blocks, "stop_reason": "tool_use"})
        return
    await begin(send)
    text = {"type": "text_delta", "text": "lo"}
    part = {"type": "input_json_delta", "partial_json": '{"a":1}'}
    for value in (
        {"type": "message_start", "message": {**message, "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {**text, "text": "Hel"}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": text},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {**blocks[1], "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": part},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    ):
        data = f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()
        # Cut anywhere: events arrive in parts.
        await chunk(send, data[:20])
        await chunk(send, data[20:])
    await chunk(send, b"")


async def _chat(got: Got, send: Send) -> None:
    """A target of OpenAI's: the same."""
    if not got.json.get("stream"):
        message = {"role": "assistant", "content": "Hello", "tool_calls": [CALL]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        await whole(send, {"id": "c1", "choices": [choice], "usage": USAGE})
        return
    await begin(send)
    await event(send, delta("Hel"))
    await event(send, delta("lo"))
    first = {**CALL, "index": 0, "function": {"name": "add", "arguments": ""}}
    second = {"index": 0, "function": {"arguments": '{"a":1}'}}
    for call in (first, second):
        await event(send, {"id": "c1", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    await event(send, delta("", finish="tool_calls"))
    await event(send, {"id": "c1", "choices": [], "usage": USAGE})
    await event(send, "[DONE]")
    await chunk(send, b"")


HISTORY = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "add"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "t1", "content": "2"},
    {"role": "user", "content": [{"type": "text", "text": "thanks"}]},
]
OWN_HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "add"}]},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "2"},
            {"type": "text", "text": "thanks"},
        ],
    },
]


def test_chat_completions_of_a_target_of_messages() -> None:
    target = ScriptedTarget(_messages)
    rows = [{"at": target, "kind": "anthropic", "models": {"m": "theirs"}}]
    body = {
        **ASK,
        "messages": HISTORY,
        "tools": [TOOL],
        "tool_choice": "required",
        "stop": "x",
        "temperature": 1.5,
    }
    with running(target), door(rows, records=True) as gateway:
        answer = gateway.http.post(CHAT, json=body).json()
        usage = {"include_usage": True}
        more = {**body, "stream": True, "stream_options": usage}
        _, text = streamed(gateway.http, CHAT, more)
        refused = gateway.http.post(CHAT, json={**body, "n": 2})
        assert [(r.prompt, r.generated) for r in gateway.records[:2]] == [(7, 3)] * 2
    got = target.got[0].json
    assert got["model"] == "theirs" and got["system"] == "be brief" and got["max_tokens"] == 4096
    assert got["messages"] == OWN_HISTORY and got["tools"] == [OWN_TOOL]
    assert got["tool_choice"] == {"type": "any"} and got["stop_sequences"] == ["x"]
    assert got["temperature"] == 1.0 and target.got[0].path == MESSAGES
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello", "tool_calls": [CALL]}
    assert choice["finish_reason"] == "tool_calls" and answer["model"] == "m"
    assert answer["usage"]["prompt_tokens"] == 7 and answer["usage"]["completion_tokens"] == 3
    assert words_of(text) == "Hello" and text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"tool_calls"' in text and '"prompt_tokens":7' in text
    assert r'"arguments":"{\"a\":1}"' in text and '"name":"add"' in text
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "n"


def test_messages_of_a_target_of_chat_completions() -> None:
    target = ScriptedTarget(_chat)
    body = {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "be brief"}],
        "messages": OWN_HISTORY,
        "tools": [OWN_TOOL],
        "tool_choice": {"type": "any"},
        "stop_sequences": ["x"],
    }
    with running(target), door([target], records=True) as gateway:
        answer = gateway.http.post(MESSAGES, json=body).json()
        _, text = streamed(gateway.http, MESSAGES, {**body, "stream": True})
        wrong = gateway.http.post(MESSAGES, json={**body, "messages": [{"content": [3]}]})
        assert [(r.prompt, r.generated) for r in gateway.records[:2]] == [(7, 3)] * 2
    got = target.got[0].json
    flat = [{**m, "content": "thanks"} if m["role"] == "user" else m for m in HISTORY]
    flat[1] = HISTORY[1]
    assert got["messages"] == flat and got["tools"] == [TOOL] and got["stop"] == ["x"]
    assert got["tool_choice"] == "required" and got["max_tokens"] == 9
    assert target.got[1].json["stream_options"] == {"include_usage": True}
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    assert answer["content"] == [{"type": "text", "text": "Hello"}, use]
    assert answer["stop_reason"] == "tool_use" and answer["usage"]["output_tokens"] == 3
    names = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert names == [
        "message_start",
        *(block[0], block[1], block[1], block[2]),
        *block,
        "message_delta",
        "message_stop",
    ]
    assert '"stop_reason":"tool_use"' in text and '"output_tokens":3' in text
    assert wrong.status_code == 400 and wrong.json()["type"] == "error"


def test_the_official_client_reads_a_translated_stream() -> None:
    import openai

    target = ScriptedTarget(_messages)
    rows = [{"at": target, "kind": "anthropic", "models": ["m"]}]
    with running(target), door(rows) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x")
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        text = "".join(part.choices[0].delta.content or "" for part in stream if part.choices)
    assert text == "Hello"
