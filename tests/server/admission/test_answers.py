"""Answers: what they can become is bounded before work, and they are built and sent in pieces."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from helpers.live_server import fake_context, serving
from helpers.loop_meter import LoopMeter
from helpers.scripted_engine import ScriptedEngine, fake_info

from tidemill.contract.sampling import SamplingParams
from tidemill.generation.caller import Caller
from tidemill.metrics.admission import AdmissionMetrics
from tidemill.server.access.limits import Limits
from tidemill.server.admission.answers import AnswerSize, answer_size, vectors_size
from tidemill.server.admission.control import Admission
from tidemill.server.admission.options import AdmissionOptions
from tidemill.server.admission.shares import Shares
from tidemill.server.errors import Rejection
from tidemill.server.transport.pieces import Document
from tidemill.server.transport.sink import WRITE_BYTES

CHAT = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 20}
LONG = {"prompt": "x" * 150, "logprobs": 5, "ignore_eos": True}


def _engine(tokens: int = 60) -> ScriptedEngine:
    info = fake_info(max_model_len=20_000, num_blocks=10_000)
    return ScriptedEngine(lambda request, choice: [97 + choice % 26] * tokens, info=info)


def test_no_answer_is_larger_than_was_estimated() -> None:
    prompt = tuple(range(97, 147))
    with serving(fake_context(_engine())) as url:
        for path, body, params in (
            (
                "chat/completions",
                {**CHAT, "n": 3, "max_tokens": 50, "ignore_eos": True},
                SamplingParams(n=3, max_tokens=50, logprobs=20),
            ),
            (
                "completions",
                {"prompt": prompt, "n": 2, "max_tokens": 2, "prompt_logprobs": 20},
                SamplingParams(n=2, max_tokens=2, prompt_logprobs=20),
            ),
            (
                "completions",
                {"prompt": prompt, "n": 2, "max_tokens": 2, "echo": True, "logprobs": 20},
                SamplingParams(n=2, max_tokens=2, logprobs=20, prompt_logprobs=20),
            ),
        ):
            answer = httpx.post(f"{url}/v1/{path}", json=body)
            assert answer.status_code == 200, answer.text
            most = answer_size([prompt], [params], streamed=False).most
            assert len(answer.content) < most + 1000 < 10 * len(answer.content)
    numbers = [i / 7 - 1e-5 for i in range(1000)]
    assert len(json.dumps(numbers)) < vectors_size(1, 1000, decimal=True, encoded=False).most


@pytest.mark.parametrize(
    ("path", "body", "streams"),
    [
        ("chat/completions", {**CHAT, "n": 4, "max_tokens": 100}, True),
        ("completions", {**LONG, "n": 30, "max_tokens": 20}, True),
        ("completions", {**LONG, "echo": True, "n": 30, "max_tokens": 1}, False),
        ("completions", {"prompt": "x" * 60, "prompt_logprobs": 20, "n": 4}, False),
    ],
)
def test_what_could_become_too_large_is_refused(
    path: str, body: dict[str, Any], streams: bool
) -> None:
    engine = _engine()
    context = fake_context(engine, limits=Limits(max_answer_bytes=200_000))
    with serving(context) as url:
        refused = httpx.post(f"{url}/v1/{path}", json=body)
        streamed = httpx.post(f"{url}/v1/{path}", json={**body, "stream": True})
        fewer = httpx.post(f"{url}/v1/{path}", json={**body, "n": 1, "max_tokens": 1})
    error = refused.json()["error"]
    assert refused.status_code == 400 and "max_answer_bytes" in error["message"]
    assert f"n {body['n']}" in error["message"] and "logprobs" in error["param"]
    assert ("stream" in error["message"]) == streams
    assert streamed.status_code == (200 if streams else 400)
    assert fewer.status_code == 200, fewer.text


def test_many_vectors_are_refused() -> None:
    context = fake_context(ScriptedEngine(), limits=Limits(max_answer_bytes=4000))
    with serving(context) as url:
        body = {"input": ["a"] * 40, "encoding_format": "float"}
        refused = httpx.post(f"{url}/v1/embeddings", json=body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "input"
        body["encoding_format"] = "base64"
        assert httpx.post(f"{url}/v1/embeddings", json=body).status_code == 200


def test_answers_that_are_held_are_bounded_by_client() -> None:
    admission = Admission(
        AdmissionOptions(max_queue_tokens=10**6),
        lambda: fake_info(max_num_seqs=64),
        AdmissionMetrics().of("tiny"),
        choices=Shares(4096),
        answers=Shares(100_000),
    )
    params = [SamplingParams(max_tokens=100)]

    def ask(client: str, number: int) -> Any:
        return admission.admit(Caller(client), [(number,)], params, AnswerSize(per_token=600))

    first = ask("a", 1)
    with pytest.raises(Rejection, match="answers of 60000 bytes") as refused:
        ask("a", 2)
    assert int(refused.value.problem.headers["Retry-After"]) >= 1
    with pytest.raises(Rejection):
        ask("b", 3)  # beyond its share
    smaller = AnswerSize(per_token=450)
    other = admission.admit(Caller("b"), [(4,)], params, smaller)
    first.progress(0, 150)  # more than was expected
    assert admission._answers.of("a") == 150 * 600
    first.close()
    other.close()
    assert admission._answers.total == 0


def test_the_whole_answer_is_the_streamed_one() -> None:
    body = {"prompt": ["abc", "d"], "echo": True, "logprobs": 3, "n": 2, "max_tokens": 4}
    with serving(fake_context(_engine())) as url:
        whole = httpx.post(f"{url}/v1/completions", json=body).json()
        text = httpx.post(f"{url}/v1/completions", json={**body, "stream": True}).text
    streamed: dict[int, dict[str, list[Any]]] = {}
    for line in text.splitlines():
        if not line.startswith('data: {"'):
            continue
        for choice in json.loads(line[6:])["choices"]:
            lists = streamed.setdefault(choice["index"], {})
            for name, values in (choice["logprobs"] or {}).items():
                lists.setdefault(name, []).extend(values)
    assert len(whole["choices"]) == 4
    for choice in whole["choices"]:
        assert choice["logprobs"] == streamed[choice["index"]]
        count = 8 if choice["index"] < 2 else 6  # a start token is added to a text
        assert [len(v) for v in choice["logprobs"].values()] == [count] * 4


def test_placed_values_stand_where_they_were_put() -> None:
    document = Document()
    first, second = document.place([b"[1,", b"2]"]), document.place([bytearray(b"null")])
    value = {"b": second, "text": "\0" + "1\0", "a": [first, {"c": second}]}
    pieces = document.encode(value)
    assert json.loads(b"".join(pieces)) == {
        "b": None,
        "text": "\x001\0",
        "a": [[1, 2], {"c": None}],
    }


def test_large_answers_are_built_and_sent_beside_others() -> None:
    meter = LoopMeter()
    bodies = (
        ("completions", {"prompt": "x" * 16_000, "n": 2, "prompt_logprobs": 20}),
        ("completions", {"prompt": [97] * 16_000, "n": 2, "echo": True, "logprobs": 20}),
        ("chat/completions", {**CHAT, "n": 64, "max_tokens": 50, "ignore_eos": True}),
        ("embeddings", {"input": ["abc"] * 2048, "encoding_format": "float"}),
    )
    with serving(fake_context(_engine()), meter=meter) as url:
        for path, body in bodies:
            more = {"max_tokens": 1, **body} if "n" in body else body

            def ask(path: str = path, body: dict[str, Any] = more) -> None:
                answer = httpx.post(f"{url}/v1/{path}", json=body, timeout=60)
                assert answer.status_code == 200, answer.text
                assert len(answer.content) > WRITE_BYTES

            # The prompts' logprobs take 0.4 s and more in one go.
            assert meter.least(ask, 0.2) < 0.2, path
