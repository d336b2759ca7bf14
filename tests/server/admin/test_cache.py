"""GET /admin/cache/changes."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from helpers.real_server import RealServer

PATH = "/admin/cache/changes"
TEXT = "The brook runs down the hill to the river and the sea. " * 20


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with RealServer("--threads", "1", "--database", "none", "--max-model-len", "1024") as found:
        yield found


def test_news_follow_requests(server: RealServer) -> None:
    first = server.http.get(PATH).json()
    assert first["models"]["brook"]["news"]["anew"]
    assert first["models"]["brook"]["block_tokens"] in (16, 32, 64, 128)
    body = {"model": "brook", "prompt": TEXT, "max_tokens": 1}
    answered = server.http.post("/v1/completions", json=body, headers={"X-Request-ID": "mine"})
    tokens = answered.json()["usage"]["prompt_tokens"]
    second = server.http.get(PATH, params={"cursor": first["cursor"]}).json()
    [model] = second["models"].values()
    [prompt] = model["news"]["prompts"]
    blocks = tokens // model["block_tokens"]
    assert (prompt[0], prompt[2], prompt[3]) == ("mine", blocks, tokens)
    added = base64.b64decode(model["news"]["added"])
    assert len(added) == 32 * blocks
    assert added[-32:-16] == base64.b64decode(prompt[1])
    third = server.http.get(PATH, params={"cursor": second["cursor"]}).json()
    news = third["models"]["brook"]["news"]
    assert set(news) == {"cursor"} and third["cursor"] == second["cursor"]


def test_a_cursor_of_nothing_gets_everything(server: RealServer) -> None:
    for cursor in ("x", "a-1:brook", ",", "🦊:brook", "0-0"):
        found = server.http.get(PATH, params={"cursor": cursor}).json()
        assert found["models"]["brook"]["news"]["anew"]
