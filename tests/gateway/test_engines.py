"""Real servers behind a gateway, one of which is killed while it answers."""

from __future__ import annotations

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


def _stream(url: str, number: int, some: Event) -> str:
    text = ""
    with httpx.stream("POST", f"{url}{CHAT}", json=_body(number), timeout=60) as response:
        for part in response.iter_text():
            text += part
            if len(text) > 4000:
                some.set()
    return text


def test_streams_of_an_engine_that_is_killed_end_as_if_it_had_not_been(
    servers: list[RealServer],
) -> None:
    rows = [{"name": n, "url": s.url} for n, s in zip("ab", servers, strict=True)]
    door = Door({"targets": rows, "routing": {"policy": "round-robin"}}, Security(), records=True)
    number, some = 8, Event()
    try:
        with ThreadPoolExecutor(number) as threads:
            running = [threads.submit(_stream, door.url, i, some) for i in range(number)]
            assert some.wait(30)
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
