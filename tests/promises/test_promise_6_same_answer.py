"""Promise 6: same answer at any load, with any cache, chunking and memory pressure, over HTTP."""

from __future__ import annotations

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.real_server import RealServer

from tidemill.loading import bundled_models

pytestmark = pytest.mark.xdist_group("promises")

COUNT = 64
_WORDS = ["tide", "mill", "river", "stone", "wheel", "grain", "boat", "rope", "lamp", "salt"]

Answer = tuple[Any, ...]


def _requests() -> list[dict[str, Any]]:
    """Prompts of many lengths, half of them with a long shared beginning; greedy and seeded."""
    rng = random.Random(6)
    shared = " ".join(rng.choices(_WORDS, k=90))
    requests = []
    for i in range(COUNT):
        own = " ".join(rng.choices(_WORDS, k=rng.choice((1, 3, 17, 40, 120))))
        request: dict[str, Any] = {
            "prompt": f"{shared} {own}" if i % 2 else own,
            "max_tokens": rng.choice((4, 12, 24)),
            "ignore_eos": True,
            "logprobs": 2,
            "temperature": 0,
        }
        if i % 3:
            request |= {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 1000 + i}
        if i % 5 == 0:
            request |= {"repetition_penalty": 1.2, "presence_penalty": 0.4, "n": 2}
        requests.append(request)
    return requests


def _answer(server: RealServer, request: dict[str, Any]) -> Answer:
    choices = server.complete(**request)["choices"]
    # Logprobs are compared too, so that equal tokens by luck do not hide unequal logits.
    return tuple(
        (c["text"], c["finish_reason"], repr(c["logprobs"]))
        for c in sorted(choices, key=lambda c: c["index"])
    )


def _all(server: RealServer, requests: list[dict[str, Any]], width: int) -> list[Answer]:
    if width == 1:
        return [_answer(server, request) for request in requests]
    with ThreadPoolExecutor(width) as pool:
        return list(pool.map(lambda request: _answer(server, request), requests))


@pytest.fixture(scope="module")
def alone(server: RealServer) -> list[Answer]:
    """Each request by itself, one after the other."""
    return _all(server, _requests(), 1)


def _assert_same(answers: list[Answer], expected: list[Answer]) -> None:
    different = [i for i in range(COUNT) if answers[i] != expected[i]]
    assert not different, f"requests {different} of {COUNT} differ"


def test_answers_differ_between_requests(alone: list[Answer]) -> None:
    assert len({a[0][0] for a in alone}) > COUNT // 2, "the test could not notice a mix-up"


def test_concurrency_64_and_order(server: RealServer, alone: list[Answer]) -> None:
    requests = _requests()
    order = list(range(COUNT))
    random.Random(1).shuffle(order)
    shuffled = _all(server, [requests[i] for i in order], COUNT)
    answers = [answer for _, answer in sorted(zip(order, shuffled, strict=True))]
    assert server.stats()["cached_tokens"] > 0
    _assert_same(answers, alone)


@pytest.mark.parametrize("step_tokens", ["16", "64"])
def test_no_prefix_cache_and_other_chunks(alone: list[Answer], step_tokens: str) -> None:
    flags = ("--no-prefix-caching", "--max-step-tokens", step_tokens)
    with RealServer(*flags, "--threads", "1", "--kv-memory", "64MiB") as other:
        _assert_same(_all(other, _requests(), COUNT), alone)
        assert other.stats()["cached_tokens"] == 0


def test_preemption(server: RealServer) -> None:
    # Short prompts and long outputs: many are let in, and then they grow out of the cache.
    requests = [
        {**request, "prompt": f"{i} boats", "max_tokens": 100, "n": 1}
        for i, request in enumerate(_requests())
    ]
    expected = _all(server, requests, COUNT)
    flags = ("--kv-memory", "2MiB", "--max-model-len", "256", "--block-size", "16")
    flags += ("--max-queue-tokens", "100000")  # all of them wait, nobody is turned away
    with RealServer(*flags) as other:
        # Where the machine has other work, requests may come so slowly that few run at a time.
        for _ in range(6):
            _assert_same(_all(other, requests, COUNT), expected)
            if other.stats()["preemptions"] > 0:
                return
    raise AssertionError("memory was not tight enough to show anything")


def test_speculation_and_a_killed_engine(server: RealServer, alone: list[Answer]) -> None:
    listing = {"type": "array", "items": {"enum": ["tide", "mill"]}, "minItems": 9, "maxItems": 12}
    shape = {"type": "json_schema", "json_schema": {"name": "l", "schema": listing}}
    repeat = " ".join(_WORDS * 3)
    requests: list[dict[str, Any]] = [
        {"prompt": repeat, "max_tokens": 300, "temperature": (0, 0.7, 1)[i % 3], "seed": i,
         "ignore_eos": True, "logprobs": 1, "n": 1 + i % 2}
        for i in range(9)
    ]  # fmt: skip
    requests += [
        {"prompt": repeat, "max_tokens": 120, "temperature": 1, "seed": i, "logprobs": 1,
         "response_format": shape}
        for i in range(3)
    ]  # fmt: skip
    requests += [
        {"prompt": repeat, "max_tokens": 120, "temperature": 0, "stop": ["lt ti", "oat ro"]},
        {"prompt": repeat, "max_tokens": 90, "temperature": 0.7, "seed": 1, "stop": " grain b"},
    ]
    # Where the server says nothing, tokens that a grammar forces are drafts.
    expected = _all(server, [{**r, "speculation": "off"} for r in requests], 1)
    assert server.stats()["drafted_tokens"] == 0
    # Lookup drafts as well, where it finds something.
    draft = f"draft={bundled_models()['brook'] / 'draft'}"
    with RealServer("--speculate", draft, "--threads", "1", "--kv-memory", "64MiB") as other:
        _assert_same(_all(other, _requests(), COUNT), alone)
        stats = other.stats()
        # How many is chosen by prices: a draft seldom pays beside a model as small as brook.
        assert stats["drafted_tokens"] >= stats["drafts_accepted"] > 0
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(_all, other, requests, len(requests))
            deadline = time.monotonic() + 30
            while other.stats()["generated_tokens"] < stats["generated_tokens"] + 300:
                assert time.monotonic() < deadline
            other.engine().kill()
            answers = running.result()
        different = [i for i, answer in enumerate(answers) if answer != expected[i]]
        assert not different, f"requests {different} differ"
        metrics = other.http.get("/metrics").text
        assert re.search(r"^tidemill_engine_restarts_total\b.* 1\.0$", metrics, re.MULTILINE)


def test_a_seed_is_reproducible_and_choices_differ(server: RealServer) -> None:
    ask = {"prompt": "The tide", "temperature": 1.5, "n": 4, "max_tokens": 16, "ignore_eos": True}
    first = [c["text"] for c in server.complete(**ask, seed=5)["choices"]]
    again = [c["text"] for c in server.complete(**ask, seed=5)["choices"]]
    other = [c["text"] for c in server.complete(**ask, seed=6)["choices"]]
    assert first == again and len(set(first)) == 4
    assert first != other
    unseeded = [c["text"] for c in server.complete(**ask)["choices"]]
    assert unseeded != [c["text"] for c in server.complete(**ask)["choices"]]
