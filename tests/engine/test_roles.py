"""Disaggregated prefill between real servers: one computes long prompts, another one answers them,
and the answers are a quiet run's, whatever is killed meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
from helpers.addresses import free_address
from helpers.real_server import RealServer

from tidemill.transfer.link import KEY_VARIABLE

FLAGS = ("--threads", "1", "--database", "none")
KEY = {KEY_VARIABLE: "a secret of these tests"}
STREAMS, PROMPTS = 4, 4


@contextmanager
def _pair() -> Iterator[tuple[RealServer, RealServer]]:
    """One that computes prompts, and one that gives it prompts."""
    there = free_address()
    with (
        RealServer(*FLAGS, "--role", "prefill", "--kv-listen", there, environment=KEY) as one,
        RealServer(*FLAGS, "--role", "decode", "--kv-peers", there, environment=KEY) as two,
    ):
        yield one, two


def _stream(server: RealServer, number: int) -> str:
    """The text of a long answer."""
    body = {
        "model": "brook", "prompt": f"Story {number}: ", "stream": True, "seed": number,
        "max_tokens": 1200, "ignore_eos": True, "temperature": 0.9,
    }  # fmt: skip
    text = ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
    return text


def _answer(server: RealServer, name: str) -> tuple[str, int]:
    """The answer to a long prompt, and how much of that was not computed there."""
    prompt = f"{name} " + "The river runs to the sea, and the mill turns. " * 40
    found: dict[str, Any] = server.complete(
        model="brook", prompt=prompt, max_tokens=24, ignore_eos=True, seed=1, temperature=0.8
    )
    cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found["choices"][0]["text"], cached


def _remote(server: RealServer, outcome: str = "whole") -> float:
    """Prompts of a server that another one was given."""
    for line in server.http.get("/metrics").text.split("\n"):
        if line.startswith("tidemill_remote_prefills_total") and f'"{outcome}"' in line:
            return float(line.split()[-1])
    return 0.0


def _ready(server: RealServer) -> None:
    until = time.monotonic() + 60
    while server.http.get("/readyz").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_prompts_are_computed_by_another_server_whatever_is_killed() -> None:
    with _pair() as (one, two), ThreadPoolExecutor(STREAMS + PROMPTS) as threads:
        assert two.http.get("/admin/engines").json()["engines"][0]["role"] == "decode"
        assert one.http.get("/load").json()["models"]["brook"]["role"] == "prefill"
        for server in (one, two):  # what it takes is known
            for number in range(4):
                _answer(server, f"learn {number}")
        quiet = list(threads.map(lambda number: _stream(two, number), range(STREAMS)))

        # Streams run; what prompts would make them wait counts. It is the engine that chooses, from
        # what it has measured: now and then it computes a round here.
        most = 0
        for turn in range(8):
            running = [threads.submit(_stream, two, number) for number in range(STREAMS)]
            names = [f"first {turn} {i}" for i in range(PROMPTS)]
            got = list(threads.map(lambda name: _answer(two, name), names))
            assert [one.result() for one in running] == quiet
            assert [text for text, _ in got] == [_answer(one, name)[0] for name in names]
            most = max(most, *(cached for _, cached in got))
            if _remote(two) > 0:
                break
        assert _remote(two) > 0
        assert most > 300

        # The engine that computes prompts dies: they are computed here.
        running = [threads.submit(_stream, two, number) for number in range(STREAMS)]
        asked = [threads.submit(_answer, two, f"second {i}") for i in range(PROMPTS)]
        time.sleep(0.05)
        one.engine().kill()
        got = [each.result() for each in asked]
        assert [one.result() for one in running] == quiet
        _ready(one)
        assert [text for text, _ in got] == [_answer(one, f"second {i}")[0] for i in range(PROMPTS)]

        # The engine that answers dies: it is replaced, and goes on.
        running = [threads.submit(_stream, two, number) for number in range(STREAMS)]
        asked = [threads.submit(_answer, two, f"third {i}") for i in range(PROMPTS)]
        time.sleep(0.05)
        two.engine().kill()
        got = [each.result() for each in asked]
        assert [one.result() for one in running] == quiet
        assert [text for text, _ in got] == [_answer(one, f"third {i}")[0] for i in range(PROMPTS)]
