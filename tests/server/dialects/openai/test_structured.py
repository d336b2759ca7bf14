"""Constraints over HTTP: the program the engine gets, and the combinations that are refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.program import Grammar

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
TEXT: dict[str, Any] = {"prompt": "hello"}
ROUTES = [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]
SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}

FIELDS: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "guided_json": SCHEMA,
    "guided_regex": "a+",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'root ::= "a"',
    "structured_outputs": {"json": SCHEMA},
    "json_schema": SCHEMA,
    "grammar": 'root ::= "a"',
}
CUTS: dict[str, Any] = {
    "stop_token_ids": [5],
    "ignore_eos": True,
    "min_tokens": 2,
}


@pytest.fixture(scope="module")
def http(base_url: str) -> httpx.Client:
    return httpx.Client(base_url=base_url, timeout=10)


@pytest.mark.parametrize(("path", "base"), ROUTES)
@pytest.mark.parametrize("field", FIELDS)
def test_the_engine_gets_the_language(
    http: httpx.Client, engine: ScriptedEngine, path: str, base: dict[str, Any], field: str
) -> None:
    for stream in (False, True):
        answer = http.post(path, json={**base, field: FIELDS[field], "n": 2, "stream": stream})
        assert answer.status_code == 200, answer.text
        [phase] = engine.requests[-1].program.phases
        assert isinstance(phase, Grammar)
        assert phase.param.startswith(field)
        if phase.kind == "json_schema":
            assert list(json.loads(phase.source)["properties"]) == ["z", "a"]


def test_free_text_has_no_program(http: httpx.Client, engine: ScriptedEngine) -> None:
    for path, base in ROUTES:
        body = {**base, "response_format": {"type": "text"}, "guided_json": None}
        assert http.post(path, json=body).status_code == 200
        assert engine.requests[-1].program.free


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "base"), ROUTES)
def test_a_stop_string_that_cuts_a_document_is_named(
    path: str, base: dict[str, Any], stream: bool
) -> None:
    engine = ScriptedEngine(lambda request, choice: [*b'{"z": "x END y"}', 257])
    with serving(fake_context(engine)) as url:
        for stop, finish in (("END", {"finish_reason": "stop", "stop_reason": "END"}),
                             ("no such", {"finish_reason": "stop"})):  # fmt: skip
            asked = {**base, "guided_json": SCHEMA, "stop": ["zzz", stop], "stream": stream}
            answer = httpx.post(url + path, json=asked)
            assert answer.status_code == 200, answer.text
            lines = [x[6:] for x in answer.text.splitlines() if x.startswith("data: {")]
            parts = [json.loads(x)["choices"][0] for x in lines or [answer.text]]
            assert {k: v for k, v in parts[-1].items() if k.endswith("_reason")} == finish
            said = "".join(
                part.get("text") or part.get("delta", part.get("message", {})).get("content") or ""
                for part in parts
            )
            assert said == ('{"z": "x ' if stop == "END" else '{"z": "x END y"}')


@pytest.mark.parametrize(("path", "base"), ROUTES)
@pytest.mark.parametrize("cut", CUTS)
def test_what_could_cut_a_document_is_refused(
    http: httpx.Client, path: str, base: dict[str, Any], cut: str
) -> None:
    for field, value in FIELDS.items():
        answer = http.post(path, json={**base, field: value, cut: CUTS[cut]})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == cut and field in error["message"], error
    harmless = {"stop_token_ids": [], "ignore_eos": False, "min_tokens": 0}
    answer = http.post(path, json={**base, "guided_regex": "a", cut: harmless[cut]})
    assert answer.status_code == 200


@pytest.mark.parametrize(("path", "base"), ROUTES)
def test_two_constraints_are_refused(http: httpx.Client, path: str, base: dict[str, Any]) -> None:
    names = list(FIELDS)
    for one, other in itertools.pairwise(names):
        answer = http.post(path, json={**base, one: FIELDS[one], other: FIELDS[other]})
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert one in message and other in message


def test_a_document_cannot_go_on_with_a_message(http: httpx.Client) -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": "The"}]
    body = {"messages": messages, "continue_final_message": True, "guided_regex": "a"}
    error = http.post("/v1/chat/completions", json=body).json()["error"]
    assert "guided_regex" in error["message"] and "continue_final_message" in error["message"]
