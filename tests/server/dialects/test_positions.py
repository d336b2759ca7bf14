"""Streams that another server goes on with at an exact position, in every dialect that streams."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from helpers.live_server import fake_context, serving
from helpers.real_server import RealServer
from helpers.scripted_engine import EOS, ScriptedEngine

from tidemill.contract.position import HEADER, Begun, Position, Told, encoder, mark_of
from tidemill.contract.request import EngineRequest

TEXT = "Grüße, wie geht es? stop"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "n": 2,
        "logprobs": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/completions": {"prompt": ["Hi", "Ho"], "stream": True, "stop": "stop"},
    "/v1/responses": {"input": "Hi", "stream": True},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 100,
        "stream": True,
    },
    "/generate_stream": {"inputs": "Hi", "parameters": {"seed": 1, "max_new_tokens": 100}},
    "/v2/models/tiny/generate_stream": {"text_input": "Hi"},
    "/completion": {"prompt": "Hi", "stream": True},
    "/api/chat": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"model": "tiny", "prompt": "Hi"},
}


def _script(request: EngineRequest, choice: int) -> Sequence[int]:
    return [*TEXT[choice:].encode(), EOS]


@pytest.fixture
def urls() -> Iterator[tuple[str, str]]:
    """Two servers of one model."""
    engines = [ScriptedEngine(_script, cached_tokens=n) for n in (7, 0)]
    with (
        serving(fake_context(engines[0])) as one,
        serving(fake_context(engines[1])) as two,
    ):
        yield one, two


def _post(url: str, path: str, position: Position) -> tuple[int, bytes]:
    value, body = position.body(json.dumps(BODIES[path]).encode())
    headers = {HEADER: value, "content-type": "application/json"}
    answer = httpx.post(url + path, content=body, headers=headers, timeout=30)
    return answer.status_code, answer.content


def _parts(path: str, data: bytes) -> list[bytes]:
    end = b"\n" if path.startswith("/api/") else b"\n\n"
    return [part + end for part in data.split(end) if part]


_VOLATILE = re.compile(
    rb'"(created_at|completed_at|total_duration|load_duration|prompt_eval_duration|eval_duration'
    rb"|timings|prompt_ms|predicted_ms|[a-z_]*per_[a-z_]*|generation_time|queue_time"
    rb'|inference_time)":("[^"]*"|[-\d.e]+)'
)


def _same(data: bytes) -> bytes:
    """Without what a clock says."""
    return _VOLATILE.sub(b"", data)


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_goes_on_elsewhere_from_each_of_its_marks(
    urls: tuple[str, str], path: str
) -> None:
    one, two = urls
    status, data = _post(one, path, Position())
    assert status == 200, data
    position, sent, places = Position(), b"", list[tuple[bytes, bytes]]()
    for part in _parts(path, data):
        mark = mark_of(part)
        if mark is None:
            sent += part
        else:
            position.add(mark)
            places.append((sent, encoder.encode(position)))
    assert len(places) > 10
    for before, known in [*places[:3], *places[3:-3:7], *places[-3:]]:
        resumed = msgspec.json.decode(known, type=Position)
        status, rest = _post(two, path, resumed)
        assert status == 200, rest
        after = b"".join(part for part in _parts(path, rest) if mark_of(part) is None)
        assert _same(before + after) == _same(sent)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_a_stream_of_a_server_that_is_drained_ends_for_another_one(
    urls: tuple[str, str], path: str
) -> None:
    one, two = urls
    _, whole = _post(two, path, Position())
    want = b"".join(part for part in _parts(path, whole) if mark_of(part) is None)
    slow = ScriptedEngine(_script, cached_tokens=0, step_seconds=0.03)
    with serving(fake_context(slow)) as left:
        value, body = Position().body(json.dumps(BODIES[path]).encode())
        headers = {HEADER: value, "content-type": "application/json"}
        position, sent, held, marks = Position(), b"", b"", []
        with httpx.stream("POST", left + path, content=body, headers=headers) as answer:
            for line in answer.iter_lines():
                held += line.encode() + b"\n"
                if (mark := mark_of(line.encode())) is None:
                    continue
                marks.append(mark)
                position.add(mark)
                sent, held = sent + held, b""
                if len(marks) == 3:
                    drained = httpx.post(f"{left}/admin/engines/drain", json={})
                    assert drained.status_code == 200 and drained.json()["leaving"]
        assert marks[-1].moved
        refused = httpx.post(left + path, json=BODIES[path])
        assert refused.status_code == 503 and refused.headers["retry-after"]
        httpx.post(f"{left}/admin/engines/restore", json={})
        assert httpx.post(left + path, json=BODIES[path]).status_code == 200
    _, rest = _post(one, path, position)
    found = sent + held + rest  # the empty line after the last mark
    parts = [part for part in _parts(path, found) if mark_of(part) is None]
    assert len(_texts_of(path, want)) > 20
    assert _texts_of(path, b"".join(parts)) == _texts_of(path, want)


def _texts_of(path: str, data: bytes) -> str:
    """The texts of an answer, by choice: steps of several choices may come together."""
    if path == "/v1/chat/completions":
        return str(_texts(data))
    return "".join(re.findall(r'"(?:content|text)":"((?:[^"\\]|\\.)+)"', data.decode()))


def _schema() -> dict[str, Any]:
    members = {"name": {"type": "string"}, "ages": {"type": "array", "items": {"type": "integer"}}}
    schema = {"type": "object", "properties": members, "required": [*members]}
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def test_an_engine_goes_on_with_the_same_tokens() -> None:
    path = "/v1/chat/completions"
    common = {
        "messages": [{"role": "user", "content": "A story of a fox, please"}],
        "stream": True,
        "temperature": 1.0,
        "presence_penalty": 0.5,
    }
    bodies = [
        {**common, "max_tokens": 90, "n": 2, "ignore_eos": True},
        {**common, "max_tokens": 90, "response_format": _schema()},
    ]
    with RealServer("--threads", "1", "--database", "none") as server:
        for body in bodies:
            raw = json.dumps(body).encode()
            headers = {HEADER: "0", "content-type": "application/json"}
            data = server.http.post(path, content=raw, headers=headers).content
            position, sent, places = Position(), b"", list[tuple[bytes, bytes]]()
            for part in _parts(path, data):
                if (mark := mark_of(part)) is None:
                    sent += part
                else:
                    position.add(mark)
                    places.append((sent, encoder.encode(position)))
            for before, known in places[:: max(1, len(places) // 4)]:
                value, whole = msgspec.json.decode(known, type=Position).body(raw)
                headers = {HEADER: value, "content-type": "application/json"}
                rest = server.http.post(path, content=whole, headers=headers).content
                after = b"".join(part for part in _parts(path, rest) if mark_of(part) is None)
                assert _texts(before + after) == _texts(sent)


def _texts(data: bytes) -> dict[int, list[str]]:
    """The texts of each choice, joined, and its finish reason: steps of several choices may come
    together."""
    found: dict[int, list[str]] = {}
    for line in data.decode().split("\n"):
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                text = found.setdefault(choice["index"], ["", ""])
                text[0] += choice["delta"].get("content") or ""
                text[1] += choice["finish_reason"] or ""
    return found


def test_without_the_header_a_stream_has_no_marks(urls: tuple[str, str]) -> None:
    path = "/v1/chat/completions"
    answer = httpx.post(urls[0] + path, json=BODIES[path])
    assert b"tidemill" not in answer.content


@pytest.mark.parametrize(
    ("position", "body", "why"),
    [
        (Position(Begun("00" * 32, 1.0, "other")), {}, "another model"),
        (Position(Begun("00" * 32, 1.0, "", "feed")), {}, "its prompt"),
        (Position(Begun("zz", 1.0)), {}, "how many bytes"),
        (Position(Begun("00", 1.0), [Told(0, 0, (-1,))]), {}, "how many bytes"),
        (Position(Begun("00", 1.0), [Told(0, 0, (1,), "bored")]), {}, "how many bytes"),
        (Position(Begun("00" * 32, 1.0)), {"stream": False, "stream_options": None}, "streamed"),
        (Position(Begun("00" * 32, 1.0)), {"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_a_position_that_is_not_of_the_request_is_refused(
    urls: tuple[str, str], position: Position, body: dict[str, Any], why: str
) -> None:
    path = "/v1/chat/completions"
    value, sent = position.body(json.dumps({**BODIES[path], **body}).encode())
    headers = {HEADER: value, "content-type": "application/json"}
    answer = httpx.post(urls[0] + path, content=sent, headers=headers)
    assert answer.status_code == 400
    assert why in answer.text


@pytest.mark.parametrize("value", ["-1", "x", "999999"])
def test_a_wrong_header_is_refused(urls: tuple[str, str], value: str) -> None:
    path = "/v1/chat/completions"
    answer = httpx.post(urls[0] + path, json=BODIES[path], headers={HEADER: value})
    assert answer.status_code == 400
    assert HEADER in answer.text
