"""Every request leaves one record, whatever ends it."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from helpers.live_server import fake_context, serving
from helpers.pipeline_server import pipeline_server
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.prices import NANO, Prices
from tidemill.contract.request import RequestError, RequestTimings
from tidemill.server.access.security import Security
from tidemill.server.recording import Recording, times_of
from tidemill.telemetry.record import Operation, Outcome, RequestRecord

PRICES = Prices.parse({"tiny": {"input": 3, "cached_input": 1, "output": 10}})


class Recorded:
    """A server that records into a list."""

    def __init__(self, url: str, records: list[RequestRecord]) -> None:
        self.records = records
        self.http = httpx.Client(base_url=url, timeout=20)

    def post(self, path: str, body: dict[str, Any], **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)

    def one(self) -> RequestRecord:
        """The only record since the last call."""
        [found] = self.wait(lambda records: len(records) >= 1)
        return found

    def wait(self, enough: Callable[[list[RequestRecord]], bool]) -> list[RequestRecord]:
        deadline = time.monotonic() + 10
        while not enough(self.records) and time.monotonic() < deadline:
            time.sleep(0.005)
        found = list(self.records)
        self.records.clear()
        return found


@contextmanager
def recorded(engine: ScriptedEngine, security: Security | None = None) -> Iterator[Recorded]:
    records: list[RequestRecord] = []
    context = fake_context(engine)
    context.recording = Recording(records.append, PRICES)
    with serving(context, security) as url:
        yield Recorded(url, records)


@pytest.fixture(scope="module")
def server() -> Iterator[Recorded]:
    with recorded(ScriptedEngine(cached_tokens=2)) as found:
        yield found


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "secret words"}]}


def test_a_whole_answer(server: Recorded) -> None:
    answer = server.post("/v1/chat/completions", CHAT, headers={"x-request-id": "mine"}).json()
    record = server.one()
    usage = answer["usage"]
    assert record.id == "mine"
    assert (record.prompt, record.generated) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (record.cached, record.choices) == (2, 1)
    assert (record.outcome, record.finish, record.status) == (Outcome.FINISHED, "stop", 200)
    assert (record.operation, record.route) == (Operation.GENERATE, "/v1/chat/completions")
    assert (record.model, record.version, record.streamed) == ("tiny", "", False)
    assert record.client.startswith("addr:") and record.code == ""
    # In billionths: 3 per million tokens are 3000 a token.
    assert record.cost == 3000 * (record.prompt - 2) + 2000 + 10_000 * record.generated
    assert abs(record.at / 1000 - time.time()) < 60 and 0 < record.duration < 10_000_000


def test_no_content_is_in_it(server: Recorded) -> None:
    server.post("/v1/chat/completions", CHAT | {"user": "someone"})
    assert b"secret" not in msgspec.msgpack.encode(server.one())


def test_it_is_there_before_the_last_byte(server: Recorded) -> None:
    """So that after a kill no client has an answer that was not counted."""
    for _ in range(20):
        server.post("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1})
        assert len(server.records) == 1
        server.records.clear()
        with server.http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as r:
            for _ in r.iter_bytes():
                pass
        assert len(server.records) == 1
        server.records.clear()


def test_a_stream_and_several_choices(server: Recorded) -> None:
    body = {"model": "tiny", "prompt": ["a", "bcd"], "n": 2, "max_tokens": 3, "stream": True}
    server.post("/v1/completions", body | {"ignore_eos": True})
    record = server.one()
    assert (record.streamed, record.choices, record.generated) == (True, 4, 12)
    assert (record.prompt, record.finish) == (6, "length")  # each with its begin token


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", CHAT | {"max_tokens": 4}),
        ("/generate", {"inputs": "abc"}),
        ("/api/chat", CHAT | {"stream": False}),
        ("/v1/responses", {"model": "tiny", "input": "abc"}),
    ],
)
def test_every_dialect(server: Recorded, path: str, body: dict[str, Any]) -> None:
    assert server.post(path, body).status_code == 200
    record = server.one()
    assert (record.operation, record.route) == (Operation.GENERATE, path)
    assert record.charged and record.generated > 0


def test_vectors(server: Recorded) -> None:
    answer = server.post("/v1/embeddings", {"model": "tiny", "input": ["abc", "de"]}).json()
    record = server.one()
    assert record.operation == Operation.EMBED and record.outcome == Outcome.FINISHED
    assert record.prompt == answer["usage"]["prompt_tokens"] > 0
    assert (record.generated, record.choices, record.charged) == (0, 2, True)


def test_counted_tokens_cost_nothing(server: Recorded) -> None:
    server.post("/tokenize", {"model": "tiny", "prompt": "abc"})
    record = server.one()
    assert (record.operation, record.charged, record.cost) == (Operation.COUNT, False, None)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"model": "other"}, 404, "model_not_found"),
        ({"temperature": -1}, 400, "invalid_value"),
        ({"max_tokens": 10_000}, 400, "context_length_exceeded"),
    ],
)
def test_a_refused_request_says_why(
    server: Recorded, change: dict[str, Any], status: int, code: str
) -> None:
    assert server.post("/v1/chat/completions", CHAT | change).status_code == status
    record = server.one()
    assert (record.outcome, record.status, record.code) == (Outcome.REFUSED, status, code)
    assert (record.prompt, record.charged) == (0, False)


def test_looking_at_models_is_no_request(server: Recorded) -> None:
    server.http.get("/v1/models")
    server.http.get("/healthz")
    server.post("/api/show", {"model": "tiny"})
    server.post("/nowhere", {})
    server.post("/v1/completions", {"model": "tiny", "prompt": "a"})
    assert server.one().route == "/v1/completions"


def test_administrative_acts_are_recorded_with_their_subject(server: Recorded) -> None:
    server.http.get("/admin/models")
    assert server.post("/admin/models/sleep", {"model": "tiny"}).status_code == 200
    record = server.one()
    assert (record.operation, record.method) == (Operation.ADMIN, "POST")
    assert (record.route, record.subject) == ("/admin/models/sleep", "tiny")
    assert (record.outcome, record.charged) == (Outcome.FINISHED, False)
    status = server.http.delete("/admin/models/some/model").status_code
    record = server.one()
    assert (record.method, record.subject) == ("DELETE", "some/model")
    assert (record.outcome, record.status) == (Outcome.REFUSED, status)


def test_a_client_that_leaves_pays_for_what_was_generated() -> None:
    with recorded(ScriptedEngine(lambda request, choice: [97] * 200, step_seconds=0.01)) as server:
        body = CHAT | {"stream": True}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            for _ in range(8):
                next(lines)
        record = server.one()
    assert (record.outcome, record.finish, record.status) == (Outcome.CANCELLED, "", 200)
    assert record.charged and 2 <= record.generated < 200 and record.prompt > 0


def test_a_deadline_is_the_clients() -> None:
    engine = ScriptedEngine(fail_after=3, error=RequestError("timeout", "too late"))
    with recorded(engine) as server:
        assert server.post("/v1/chat/completions", CHAT).status_code == 408
        record = server.one()
    assert (record.outcome, record.code) == (Outcome.CANCELLED, "timeout")
    assert (record.charged, record.generated) == (True, 3)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_of_the_server_costs_nothing(stream: bool) -> None:
    with recorded(ScriptedEngine(fail_after=3)) as server:
        server.post("/v1/chat/completions", CHAT | {"stream": stream})
        record = server.one()
    assert (record.outcome, record.code) == (Outcome.FAILED, "internal_error")
    assert (record.charged, record.cost, record.generated) == (False, None, 3)


def test_a_stream_that_is_resumed_is_charged_once() -> None:
    with recorded(ScriptedEngine(lambda request, choice: [97] * 40, step_seconds=0.01)) as server:
        body = CHAT | {"stream": True, "max_tokens": 40}
        headers = {"x-resumable-stream": "true"}
        url = "/v1/chat/completions"
        with server.http.stream("POST", url, json=body, headers=headers) as response:
            ids = (line for line in response.iter_lines() if line.startswith("id:"))
            last = next(ids).removeprefix("id:").strip()
        rest = server.post(url, body, headers={"last-event-id": last}).text
        assert "[DONE]" in rest
        found = server.wait(lambda records: len(records) == 2)
    first, again = sorted(found, key=lambda record: record.operation)
    assert (first.operation, again.operation) == (Operation.GENERATE, Operation.RESUME)
    assert (first.outcome, first.generated, first.charged) == (Outcome.FINISHED, 40, True)
    assert (again.generated, again.charged) == (0, False)


def test_a_background_response_is_charged_when_it_ends() -> None:
    with recorded(ScriptedEngine(lambda request, choice: [97] * 30, step_seconds=0.01)) as server:
        body = {"model": "tiny", "input": "abc", "background": True, "max_output_tokens": 30}
        assert server.post("/v1/responses", body).json()["status"] in ("queued", "in_progress")
        record = server.one()
    assert (record.outcome, record.generated) == (Outcome.FINISHED, 30)


TWICE = """
async def answer(request, models):
    for name in ("tiny", "inner"):
        async for text in models[name].stream(request.messages):
            yield text
"""


def test_a_pipeline_costs_what_its_calls_cost(tmp_path: Path) -> None:
    records: list[RequestRecord] = []
    prices = Prices.parse({"tiny": {"output": 1_000_000}, "twice": {"output": 5}})
    with pipeline_server(tmp_path, Recording(records.append, prices)) as server:
        server.add("inner", TWICE.replace('"inner"', '"tiny"'))
        server.add("twice", TWICE)
        usage = server.chat("twice").json()["usage"]
    [record] = records
    assert (record.model, record.generated) == ("twice", usage["completion_tokens"])
    assert record.cost == NANO * record.generated > 0


def test_a_closed_record_keeps_nothing_of_its_request() -> None:
    class Generation:
        admitted = False
        finished = True

    generation = Generation()
    kept = weakref.ref(generation)
    records: list[RequestRecord] = []
    recording = Recording(records.append, Prices(), [("POST", "/x")])
    state: dict[str, Any] = {"request_id": "r", "operation": Operation.COUNT}
    record = recording.begin(state)
    state["generation"] = generation
    record.close(200, "POST", "/x")
    gc.disable()
    try:
        del generation, state, record
        assert kept() is None and len(records) == 1
    finally:
        gc.enable()


def test_times_of_the_engine() -> None:
    def times(*seconds: float) -> tuple[int | None, int | None, int | None]:
        return times_of(RequestTimings(*seconds))

    assert times(1.0, 1.5, 2.5, 4.5) == (500_000, 1_000_000, 2_000_000)
    assert times(1.0, 1.5, 0.0, 4.5) == (500_000, 3_000_000, None)
    assert times(1.0, 0.0, 0.0, 4.5) == (3_500_000, None, None)
    both = RequestTimings(1.0, 0.0, 0.0, 2.0).together(RequestTimings(1.1, 1.5, 1.6, 3.0, 1))
    assert both == RequestTimings(1.0, 1.5, 1.6, 3.0, 1)


def test_a_record_of_an_older_version_is_read() -> None:
    short = msgspec.msgpack.encode({"id": "id", "at": 5, "gone": 1})
    assert msgspec.msgpack.decode(short, type=RequestRecord) == RequestRecord("id", 5)
