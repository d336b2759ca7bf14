"""Pipelines answer over HTTP like models, and nothing they do reaches another request."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.fake_loader import FakeLoaded
from helpers.pipeline_server import PipelineServer, pipeline_server

from tidemill.server.host.pipelines import process as pipeline_process

ECHO = """
async def answer(request, models):
    yield "<"
    async for text in models["tiny"].stream(request.messages, **request.sampling):
        yield text
    yield ">"
"""
# The prompt as the scripted engine, which repeats it, spells it (without marks).
HI = "hi"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineServer]:
    with pipeline_server(tmp_path_factory.mktemp("pipelines")) as server:
        server.add("echo", ECHO)
        yield server


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _events(text: str) -> list[dict]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_streamed_and_whole_answers_agree_and_usage_is_that_of_the_calls(
    server: PipelineServer,
) -> None:
    whole = server.chat("echo").json()
    assert whole["model"] == "echo" and whole["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["message"]["content"] == f"<{HI}>"
    alone = server.chat("tiny").json()
    assert whole["usage"] == alone["usage"] and whole["usage"]["completion_tokens"] > 0
    streamed = server.chat("echo", stream=True, stream_options={"include_usage": True})
    events = _events(streamed.text)
    texts = [e["choices"][0]["delta"].get("content") for e in events if e["choices"]]
    assert "".join(filter(None, texts)) == f"<{HI}>" and len(texts) > 4
    assert events[-1]["usage"] == whole["usage"]


def test_sampling_fields_reach_the_call_and_completions_are_answered(
    server: PipelineServer,
) -> None:
    server.chat("echo", seed=7, stop=["x"], temperature=0.5, max_tokens=9, logit_bias={"65": 1})
    sampling = server.engine.requests[-1].sampling
    assert (sampling.seed, sampling.stop, sampling.max_tokens) == (7, ("x",), 9)
    assert sampling.temperature == 0.5 and sampling.logit_bias == {65: 1.0}
    done = server.http.post("/v1/completions", json={"model": "echo", "prompt": "hey"})
    assert done.json()["choices"][0]["text"] == "<hey>"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("response_format", {"type": "json_object"}),
        ("continue_final_message", True),
        ("chat_template_kwargs", {"a": 1}),
        ("tools", [{"type": "function", "function": {"name": "f", "parameters": {}}}]),
    ],
)
def test_what_no_pipeline_can_obey_is_a_400_that_names_it(
    server: PipelineServer, field: str, value: object
) -> None:
    answer = server.chat("echo", **{field: value})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == field, error
    assert "pipeline" in error["message"]


def test_vectors_and_tokens_of_a_pipeline_are_a_400(server: PipelineServer) -> None:
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/tokenize", {"prompt": "a"}),
        ("/v1/completions", {"prompt": [1, 2]}),
    ):
        answer = server.http.post(path, json={"model": "echo", **body})
        assert answer.status_code == 400 and "pipeline" in answer.text, answer.text


def test_embeddings_and_ranks_are_those_of_the_routes(server: PipelineServer) -> None:
    server.add(
        "vectors",
        """
        import json
        async def answer(request, models):
            vectors = await models["tiny"].embed(["a", "b"], dimensions=4)
            ranked = await models["tiny"].rerank("q", ["a", "b", "c"], top_n=2)
            return json.dumps([[list(v) for v in vectors], [[r.index, r.score] for r in ranked]])
        """,
    )
    vectors, ranked = json.loads(server.said("vectors"))
    body = {"model": "tiny", "input": ["a", "b"], "dimensions": 4}
    embedded = server.http.post("/v1/embeddings", json=body).json()["data"]
    assert vectors == [pytest.approx(one["embedding"]) for one in embedded]
    body = {"model": "tiny", "query": "q", "documents": ["a", "b", "c"], "top_n": 2}
    results = server.http.post("/v1/rerank", json=body).json()["results"]
    assert ranked == [[r["index"], pytest.approx(r["relevance_score"])] for r in results]


def test_errors_name_file_and_line_in_the_log_and_nothing_to_the_client(
    server: PipelineServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.add(
        "broken",
        """
        async def answer(request, models):
            yield "a" if request.stream else ""
            secrets = {}
            yield secrets[request.last]
        """,
    )
    answer = server.chat("broken", "my secret")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "pipeline_failed"
    assert "KeyError" not in answer.text and "broken.py" not in answer.text
    assert "KeyError at " in caplog.text and "broken.py:6 in answer" in caplog.text
    assert "my secret" not in caplog.text
    # After the start of a stream it is the stream's last event.
    events = _events(server.chat("broken", stream=True).text + "data: [DONE]\n")
    assert events[-1]["error"]["code"] == "pipeline_failed"


def test_the_file_answers_400_with_bad_request_and_handles_errors_of_models(
    server: PipelineServer,
) -> None:
    server.add(
        "checks",
        """
        from tidemill.pipelines import BadRequest, ModelError
        async def answer(request, models):
            if request.last == "bad":
                raise BadRequest("say it nicely")
            name, fields = request.last.split()
            try:
                await models[name].generate("x", **{fields: 1})
            except ModelError as error:
                return f"{error.kind} {error.param}"
        """,
    )
    answer = server.chat("checks", "bad")
    assert answer.status_code == 400 and answer.json()["error"]["message"] == "say it nicely"
    assert server.said("checks", "tiny n") == "bad_request n"
    assert server.said("checks", "tiny stop") == "bad_request stop"
    assert server.said("checks", "none seed") == "not_found None"


def test_a_too_long_prompt_is_the_clients_to_know(server: PipelineServer) -> None:
    answer = server.chat("echo", "long " * 100)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_pipelines_call_pipelines_but_not_in_a_circle(
    server: PipelineServer, caplog: pytest.LogCaptureFixture
) -> None:
    call = """
        async def answer(request, models):
            found = await models[request.options["next"]].generate(request.messages)
            return "[" + found.text + "]" + str(found.usage.completion_tokens)
        """
    server.add("outer", call, options={"next": "echo"})
    assert server.said("outer").startswith(f"[<{HI}>]")
    assert not server.said("outer").endswith("]0")
    server.add("one", call, options={"next": "two"})
    server.add("two", call, options={"next": "one"})
    assert server.chat("one").status_code == 500
    assert "in a circle: one > two > one" in caplog.text


def test_a_client_that_leaves_ends_the_task_and_the_request_in_the_engine(
    server: PipelineServer, tmp_path: Path
) -> None:
    mark = tmp_path / "cancelled"
    server.add(
        "long",
        f"""
        import asyncio, pathlib
        async def answer(request, models):
            try:
                async for text in models["tiny"].stream("x", max_tokens=10_000_000):
                    yield text
            except asyncio.CancelledError:
                pathlib.Path({str(mark)!r}).touch()
                raise
        """.replace("10_000_000", "200").replace('"x", ', '"x", ignore_eos=True, '),
    )
    server.engine.step_seconds = 0.05
    try:
        messages = [{"role": "user", "content": "hi"}]
        body = {"model": "long", "messages": messages, "stream": True}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_lines())
        request_id = server.engine.requests[-1].request_id
        _until(mark.exists)
        _until(lambda: any(c[0] == request_id for c in server.engine.cancelled))
    finally:
        server.engine.step_seconds = 0.0
    assert server.context.host.find("long").leases == 0
    assert server.context.host.find("tiny").leases == 0


def test_time_and_memory_are_bounded_and_other_requests_go_on(server: PipelineServer) -> None:
    pipeline = server.add(
        "bounded",
        """
        import asyncio
        async def answer(request, models):
            if request.last == "slow":
                await asyncio.sleep(60)
            if request.last == "big":
                return str(len(bytearray(512 << 20)))
            await asyncio.sleep(0.1)
            return "fine"
        """,
        timeout=2.0,
        memory=200 << 20,
    )
    assert server.said("bounded") == "fine"  # the process has started
    with ThreadPoolExecutor(8) as pool:
        slow = pool.submit(server.chat, "bounded", "slow")
        big = pool.submit(server.chat, "bounded", "big")
        fine = [pool.submit(server.said, "bounded", "fine") for _ in range(4)]
        assert [f.result() for f in fine] == ["fine"] * 4
        assert slow.result().status_code == 408 and "2 s" in slow.result().text
        assert big.result().status_code == 500
    process = pipeline.running
    assert process is not None and process.gone is None  # none of it cost the process
    answer = server.chat("bounded", "slow", timeout=0.2)  # the request's own deadline
    assert answer.status_code == 408


def test_a_process_that_dies_ends_its_requests_alone_and_is_replaced(
    server: PipelineServer,
) -> None:
    pipeline = server.add(
        "mortal",
        """
        import asyncio, os
        async def answer(request, models):
            if request.last == "pid":
                return str(os.getpid())
            if request.last == "exit":
                os._exit(7)
            await asyncio.sleep(60)
        """,
    )
    first = int(server.said("mortal", "pid"))
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(server.chat, "mortal", "wait")
        assert pipeline.running is not None
        _until(lambda: pipeline.running is not None and pipeline.running.busy)
        answer = server.chat("mortal", "exit")
        for one in (answer, waits.result()):
            assert one.status_code == 503 and "Retry-After" in one.headers
    second = int(server.said("mortal", "pid"))
    assert second != first
    os.kill(second, signal.SIGKILL)
    _until(lambda: pipeline.running is not None and pipeline.running.gone)
    assert int(server.said("mortal", "pid")) not in (first, second)
    assert server.said("echo") == f"<{HI}>"


def test_a_request_that_does_not_end_when_it_is_cancelled_ends_with_its_process(
    server: PipelineServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_process, "STOP_SECONDS", 0.2)
    pipeline = server.add(
        "stubborn",
        """
        import time
        async def answer(request, models):
            while request.last != "hi":
                time.sleep(60)
            return "hi"
        """,
    )
    assert server.said("stubborn") == "hi"
    process = pipeline.running
    assert server.chat("stubborn", "block", timeout=0.3).status_code == 408
    _until(lambda: process is not None and process.gone)
    assert server.said("stubborn") == "hi" and pipeline.running is not process


def test_a_changed_file_is_served_and_a_broken_one_changes_nothing(
    server: PipelineServer, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
        import asyncio
        async def answer(request, models):
            await asyncio.sleep(0.5 if request.last == "wait" else 0)
            return "{}"
        """
    pipeline = server.add("edited", source.format("one"))
    assert server.said("edited") == "one"
    old = pipeline.running
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(server.said, "edited", "wait")
        _until(lambda: old is not None and old.busy)
        server.write("edited", source.format("second"))
        assert server.said("edited") == "second"
        assert waits.result() == "one"  # its process ended its work
    _until(lambda: old is not None and old.gone)
    server.write("edited", "import nothing_of_this_name")
    assert server.said("edited") == "second" == server.said("edited")
    assert caplog.text.count("edited.py:2 in <module>: ModuleNotFoundError") == 1
    server.write("edited", source.format("the third"))
    assert server.said("edited") == "the third"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def answer(request, models): pass", "line 2: answer must be an `async def`"),
        ("async def answer(request): pass", "line 2: answer takes two arguments"),
        ("x = 1", "has no `async def answer(request, models)`"),
        ("async def answer(request, models:", "line 2: "),
        ("import os\nos._exit(3)", "its process ended at its start: exit code 3"),
        ("x = bytearray(1 << 30)", "MemoryError"),
    ],
)
def test_a_file_that_is_no_pipeline_is_a_503_and_the_log_says_why(
    server: PipelineServer, caplog: pytest.LogCaptureFixture, source: str, said: str
) -> None:
    name = f"bad-{abs(hash(source))}"
    server.add(name, source, memory=200 << 20)
    answer = server.chat(name)
    assert answer.status_code == 503 and said not in answer.text
    assert said in caplog.text


def test_what_a_file_yields_is_text_in_pieces_and_a_slow_reader_holds_it_up(
    server: PipelineServer,
) -> None:
    server.add(
        "much",
        """
        async def answer(request, models):
            if request.last == "int":
                yield 1
            yield "\\ud800"
            for _ in range(8):
                yield "ä" * 500_000
        """,
    )
    assert server.said("much") == "?" + "ä" * 4_000_000
    assert server.chat("much", "int").status_code == 500


def test_calls_count_for_the_clients_account(server: PipelineServer) -> None:
    answer = server.chat("echo", timeout=20, cache_salt="mine")
    assert answer.status_code == 200
    request = server.engine.requests[-1]
    server.chat("tiny", timeout=20, cache_salt="mine")
    direct = server.engine.requests[-1]
    assert (request.tenant, request.weight) == (direct.tenant, direct.weight)
    assert request.cache_salt == direct.cache_salt != ""
    # Without a deadline of the request's own, the pipeline's bounds its calls.
    server.chat("echo")
    assert server.engine.requests[-1].deadline is not None
    server.chat("tiny")
    assert server.engine.requests[-1].deadline is None


def test_a_request_in_flight_may_call_models_while_the_server_drains(tmp_path: Path) -> None:
    with pipeline_server(tmp_path) as server:
        go = tmp_path / "go"
        server.add(
            "waits",
            f"""
            import asyncio, pathlib
            async def answer(request, models):
                while not pathlib.Path({str(go)!r}).exists():
                    await asyncio.sleep(0.01)
                return (await models["tiny"].generate(request.messages)).text
            """,
        )
        tiny = server.context.host.find("tiny").loaded
        assert isinstance(tiny, FakeLoaded)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(server.said, "waits")
            _until(lambda: server.context.host.find("waits").leases)
            server.drain("going down")
            for model in ("waits", "tiny"):
                answer = server.chat(model)
                assert answer.status_code == 503 and "going down" in answer.text
            assert tiny.drained is None
            go.touch()
            assert waits.result() == HI
        _until(lambda: tiny.drained)


def test_the_redacting_example_keeps_addresses_from_the_model(server: PipelineServer) -> None:
    server.add("redact", "from tidemill.pipelines.examples.redact import answer")
    text = "ann@example.org, 030 12345678"
    assert server.said("redact", text) == text
    sent = bytes(t for t in server.engine.requests[-1].prompt_token_ids if t < 256).decode()
    assert sent == "[EMAIL_1], [PHONE_1]"
    streamed = server.chat("redact", text, stream=True).text
    parts = [e["choices"][0]["delta"].get("content") for e in _events(streamed)]
    assert "".join(filter(None, parts)) == text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 50}),
        ("/v1/messages", {"max_tokens": 50, "stream": True}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/responses", {"input": "hi", "stream": True}),
        ("/generate", {"inputs": "hi"}),
    ],
)
def test_every_dialect_is_answered(server: PipelineServer, path: str, body: dict) -> None:
    if path == "/v1/messages":
        body = {**body, "messages": [{"role": "user", "content": "hi"}]}
    answer = server.http.post(path, json={"model": "echo", **body})
    assert answer.status_code == 200, answer.text
    assert "<" in answer.text and ">" in answer.text, answer.text
