"""Hostile requests, enumerated: kinds times values, each at most once before any comes again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

_FIELDS = (
    *("prompt", "model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed"),
    *("stop", "stop_token_ids", "logprobs", "top_logprobs", "prompt_logprobs", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos"),
    *("stream", "stream_options", "echo", "user", "metadata", "response_format", "tools"),
    *("tool_choice", "chat_template_kwargs", "messages", "timeout", "priority", "n_probs"),
    *("guided_json", "guided_regex", "include_effective", "reasoning_effort", "suffix"),
)

# As JSON text, so that what no JSON library writes can be sent as well.
_VALUES = (
    *(
        "null",
        "true",
        "false",
        "0",
        "-1",
        "1",
        "2",
        "129",
        "65537",
        "2147483648",
        "1e308",
        "-1e308",
    ),
    *("1e400", "NaN", "-Infinity", "0.5", "-0.0", "1e-320", "9" * 400, '""', '"a"', '"\\ud800"'),
    *('"\\u0000"', '"1"', "[]", "{}", "[[]]", "[null]", '[""]', '{"a": {}}', '{"5": 1e9}'),
    json.dumps("a" * 20_000),
    json.dumps("{{ 0 .__class__ }}{% for i in range(10**9) %}x{% endfor %}"),
    json.dumps(["x"] * 3000),
    json.dumps([5] * 3000),
    json.dumps({str(i): i for i in range(3000)}),
    "[" * 400 + "]" * 400,
    '{"a":' * 300 + "1" + "}" * 300,
    json.dumps([{"role": "user", "content": "x"}] * 500),
    json.dumps([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    json.dumps({"type": "json_object"}),
    json.dumps({"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}}),
    json.dumps(
        {
            "type": "json_schema",
            "json_schema": {
                "name": "deep",
                "schema": {"anyOf": [{"enum": list(range(500))}] * 50},
            },
        }
    ),
    json.dumps({"type": "regex", "regex": "(a*)*(b*)*c{1,9999}"}),
    json.dumps([{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}] * 200),
)

_ROUTES = ("/v1/completions", "/v1/chat/completions")

_RAW = (
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"null",
    b"[1]",
    b'{"prompt": "a", "prompt": "b"}',
    b'{"prompt"' + b" " * 100_000,
    b"{" * 100_000,
    b'{"prompt": [' + b"1," * 200_000 + b"1]}",
)

# Heads that no client of good will sends. {body} is appended as it is.
_HEADS = (
    "GET / HTTP/9.9\r\n\r\n",
    "BREW /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{}",
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "GET /v1/models/..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "GET /" + "a" * 70_000 + " HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /healthz HTTP/1.1\r\nHost: x\r\n" + "X: y\r\n" * 20_000 + "\r\n",
    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)


def _bodies() -> list[tuple[str, str, bytes]]:
    made = []
    for route in _ROUTES:
        chat = route.endswith("chat/completions")
        base = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
        for field in _FIELDS:
            for i, value in enumerate(_VALUES):
                others: dict[str, Any] = {"max_tokens": 3, **base}
                others.pop(field, None)
                text = json.dumps(others)[:-1] + f', "{field}": {value}}}'
                made.append((f"{field} = value {i} at {route}", route, text.encode()))
        made += [(f"raw body {i} at {route}", route, raw) for i, raw in enumerate(_RAW)]
    return made


def count() -> int:
    """Combinations there are."""
    return len(_bodies()) + len(_HEADS)


def requests(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Endlessly, in rounds of random order: what it is, and the bytes to send on a connection."""
    while True:
        bodies: list[tuple[str, str | None, bytes]] = [*_bodies()]
        bodies += [(f"head {i}", None, head.encode("latin-1")) for i, head in enumerate(_HEADS)]
        rng.shuffle(bodies)
        for name, route, body in bodies:
            if route is None:
                yield name, body
                continue
            head = (
                f"POST {route} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            yield name, head.encode() + body
