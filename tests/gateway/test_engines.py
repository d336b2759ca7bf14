"""Real servers behind a gateway, one of which is killed while it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import httpx
import pytest
from helpers.gateway import Door, words_of
from helpers.real_server import RealServer

from tidemill.server.access.security import Security

CHAT = "/v1/chat/completions"


@pytest.fixture
def servers() -> Iterator[list[RealServer]]:
    flags = ("--threads", "1", "--database", "none")
    with RealServer(*flags) as one, RealServer(*flags) as two:
        yield [one, two]


def _body(number: int) -> dict[str, Any]:
    return {
        "model": "brook",
        "messages": [{"role": "user", "content": f"Story {number}, please"}],
        "stream": True,
        "seed": number,
        "temperature": 0.9,
        "max_tokens": 600,
        "ignore_eos": True,
    }


def _stream(url: str, number: int, begun: Event) -> str:
    text = ""
    with httpx.stream("POST", f"{url}{CHAT}", json=_body(number), timeout=60) as response:
        for part in response.iter_text():
            text += part
            if len(text) > 4000:
                begun.set()
    return text


_TOLD = [{"role": "user", "content": "Tell a long story, please"}]
_DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/messages": {"messages": _TOLD, "max_tokens": 500},
    "/v1/responses": {"input": "Tell a long story, please", "max_output_tokens": 500},
    "/api/chat": {"messages": _TOLD, "options": {"num_predict": 500}},
    "/api/generate": {"prompt": "Tell a long story, please", "options": {"num_predict": 500}},
}


def _events(text: str) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def _whole(path: str, events: list[dict[str, Any]]) -> tuple[str, str]:
    """What a stream's parts say together, and what its end says was said ("": nothing)."""
    if path == "/v1/messages":
        found = [e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta"]
        return "".join(found), ""
    if path == "/v1/responses":
        found = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        return "".join(found), events[-1]["response"]["output"][0]["content"][0]["text"]
    if path == "/api/chat":
        return "".join(e["message"]["content"] for e in events), ""
    return "".join(e["response"] for e in events), ""


def test_every_dialect_s_streams_go_on(servers: list[RealServer]) -> None:
    """Without a seed in their bodies; the gateway compares what is repeated itself."""
    rows = [
        {"name": "a", "url": servers[0].url},
        {"name": "b", "url": servers[1].url, "price": {"output": 1}},
    ]
    routing = {"policy": "cost", "imbalance_seconds": 1e6}
    door = Door({"targets": rows, "routing": routing}, Security(), records=True)
    begun = {path: Event() for path in _DIALECTS}

    def stream(path: str) -> str:
        text, body = "", {"model": "brook", "stream": True, **_DIALECTS[path]}
        with httpx.stream("POST", f"{door.url}{path}", json=body, timeout=60) as response:
            assert response.headers["x-tidemill-target"] == "a"
            for part in response.iter_text():
                text += part
                if len(text) > 2500:
                    begun[path].set()
        return text

    try:
        with ThreadPoolExecutor(len(_DIALECTS)) as threads:
            running = {path: threads.submit(stream, path) for path in _DIALECTS}
            assert all(one.wait(30) for one in begun.values())
            servers[0].process.kill()
            texts = {path: one.result() for path, one in running.items()}
        assert {record.outcome for record in door.records} == {"finished"}
        metrics = door.http.get("/metrics").text
        [line] = [x for x in metrics.splitlines() if x.startswith("tidemill_gateway_continued_tot")]
        assert float(line.split()[-1]) >= 1
    finally:
        door.close()
    for path, text in texts.items():
        events = _events(text)
        said, end = _whole(path, events)
        assert len(said) > 200 and end in ("", said), path
        assert '"error":{' not in text
    numbers = [event["sequence_number"] for event in _events(texts["/v1/responses"])]
    assert numbers == list(range(len(numbers)))
    assert (
        len({e["response"]["id"] for e in _events(texts["/v1/responses"]) if "response" in e}) == 1
    )


@pytest.mark.parametrize("drained", [False, True])
def test_streams_of_an_engine_that_is_killed_or_drained_end_as_if_it_had_not_been(
    servers: list[RealServer], *, drained: bool
) -> None:
    rows = [{"name": n, "url": s.url} for n, s in zip("ab", servers, strict=True)]
    door = Door({"targets": rows, "routing": {"policy": "round-robin"}}, Security(), records=True)
    # Only a stream that has begun is gone on with; another is asked of the other target from anew.
    number, begun = 8, [Event() for _ in range(8)]
    try:
        with ThreadPoolExecutor(number) as threads:
            running = [threads.submit(_stream, door.url, i, begun[i]) for i in range(number)]
            assert all(one.wait(30) for one in begun)
            if drained:
                servers[0].http.post("/admin/engines/drain", json={}).raise_for_status()
            else:
                servers[0].process.kill()
            texts = [one.result() for one in running]
        assert door.http.get("/v1/models").json()["data"][0]["id"] == "brook"
        assert len(door.records) == number
        assert {(r.outcome, r.generated) for r in door.records} == {("finished", 600)}
        continued = door.http.get("/metrics").text
        assert "tidemill_gateway_continued_total 0.0" not in continued
    finally:
        door.close()
    for i, text in enumerate(texts):
        assert text.endswith("data: [DONE]\n\n")
        alone = _stream(servers[1].url, i, Event())
        assert words_of(text) == words_of(alone)
