"""What of an output is text: stop strings, end tokens, special tokens; and outputs that repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import EOS, ScriptedEngine

SYSTEM = 258  # <|system|>
TEXT = [*b"one. two END three", SYSTEM, *b"!", EOS]


class Server:
    def __init__(self, http: httpx.Client, engine: ScriptedEngine) -> None:
        self.http, self.engine = http, engine

    def choice(self, tokens: list[int] = TEXT, **body: Any) -> dict[str, Any]:
        """The choice of a completion, which is the same streamed and in a chat."""
        self.engine.script = lambda request, choice: tokens
        whole = self._post("/v1/completions", {"prompt": "x", **body})["choices"][0]
        streamed = self._streamed({"prompt": "x", **body})
        chat = self._post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **body}
        )["choices"][0]
        for other, text in ((streamed, streamed["text"]), (chat, chat["message"]["content"])):
            assert text == whole["text"]
            for name in ("finish_reason", "stop_reason"):
                assert other.get(name) == whole.get(name)
        found: dict[str, Any] = whole
        return found

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document

    def _streamed(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.http.post("/v1/completions", json={**body, "stream": True})
        parts = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
        choices = [part["choices"][0] for part in parts]
        return {**choices[-1], "text": "".join(c["text"] for c in choices)}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    engine = ScriptedEngine()
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url) as http:
        yield Server(http, engine)


def test_the_stop_string_is_part_of_the_text_where_that_is_asked(server: Server) -> None:
    plain = server.choice(stop="END")
    assert (plain["text"], plain["stop_reason"]) == ("one. two ", "END")
    for name in ("include_stop_str_in_output", "no_stop_trim"):
        kept = server.choice(stop=["END"], **{name: True})
        assert (kept["text"], kept["stop_reason"]) == ("one. two END", "END")


def test_the_token_that_ended_it_is_decoded_where_that_is_asked(server: Server) -> None:
    asked = {"stop_token_ids": [ord("w")]}
    assert server.choice(**asked)["text"] == "one. t"
    assert server.choice(**asked, include_stop_str_in_output=True)["text"] == "one. tw"
    shown = server.choice(include_stop_str_in_output=True, skip_special_tokens=False)
    assert shown["text"] == "one. two END three<|system|>!<|end|>"


def test_special_tokens_are_text_where_that_is_asked(server: Server) -> None:
    assert server.choice()["text"] == "one. two END three!"
    shown = server.choice(skip_special_tokens=False)
    assert shown["text"] == "one. two END three<|system|>!"
    stopped = server.choice(skip_special_tokens=False, stop="<|system|>")
    assert (stopped["text"], stopped["stop_reason"]) == ("one. two END three", "<|system|>")


LOOP = [*b"start ", *b"ab" * 20]


def test_an_output_that_repeats_itself_ends(server: Server) -> None:
    rule = {"max_pattern_size": 4, "min_count": 5}
    ended = server.choice(LOOP, repetition_detection=rule)
    assert ended["text"] == "start " + "ab" * 5
    assert (ended["finish_reason"], ended["stop_reason"]) == ("length", "repetition")
    assert [how for _, _, how in server.engine.cancelled][-1] == "stop"
    assert len(server.choice(LOOP, repetition_detection=rule, min_tokens=25)["text"]) == 25
    for off in ({}, {"max_pattern_size": 0, "min_count": 0, "min_pattern_size": 0}):
        whole = server.choice(LOOP, repetition_detection=off, max_tokens=46)
        assert len(whole["text"]) == 46 and "stop_reason" not in whole


def test_a_wrong_rule_is_named(server: Server) -> None:
    for rule, param in (
        ({"max_pattern_size": 4}, "repetition_detection.min_count"),
        ({"max_pattern_size": 999, "min_count": 2}, "repetition_detection.max_pattern_size"),
        ({"size": 4}, "repetition_detection.size"),
    ):
        body = {"prompt": "x", "repetition_detection": rule}
        answer = server.http.post("/v1/completions", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
