"""Grammars that end the process which compiles them are a 400; the engine and its streams go on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from helpers.real_server import RealServer

RECURSES = '%json {"const": -9223372036854775808}'
TOOL = {
    "type": "function",
    "function": {
        "name": "store",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"number": {"const": -9223372036854775808}},
            "required": ["number"],
            "additionalProperties": False,
        },
    },
}
CASES: dict[str, dict[str, Any]] = {
    "a grammar": {"guided_grammar": f"start: {RECURSES}"},
    "a part of one": {"guided_grammar": f'start: "a" rest\nrest: "b" | {RECURSES}'},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "integer", "minimum": -1e30, "maximum": -1e20}}}},
    "a required tool": {"tools": [TOOL], "tool_choice": "required"},
    "a strict tool": {"tools": [TOOL], "tool_choice": "auto"},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_engine_goes_on(server: RealServer, name: str) -> None:
    body = {"messages": [{"role": "user", "content": "Say it."}], "max_tokens": 40} | CASES[name]
    before = server.engine().pid
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for _ in range(2):
            answer = http.post("/v1/chat/completions", json=body)
            # A schema may be refused before, or have become one that can be compiled.
            assert answer.status_code == 400 or "grammar" not in name, answer.text
            if answer.status_code == 400:
                assert answer.json()["error"]["param"], answer.text
        assert server.engine().pid == before
        sound = body | {"guided_regex": "[ab]{3}"}
        for field in CASES[name]:
            sound.pop(field)
        answer = http.post("/v1/chat/completions", json=sound)
    assert answer.status_code == 200, answer.text
    assert len(json.loads(answer.text)["choices"][0]["message"]["content"]) == 3
