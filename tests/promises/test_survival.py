"""Promise 10: it survives itself. And of promise 1: what one request does to the engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from helpers.faults import fault_environment
from helpers.real_server import RealServer
from soak.run import Plan, Run

from tidemill.loading.locate import bundled_models

pytestmark = pytest.mark.xdist_group("promises")

FLAGS = ("--kv-memory", "32MiB", "--threads", "1")
CURSED = 777  # a token id


def test_promise_10_streams_survive_whatever_happens() -> None:
    plan = Plan(
        seconds=25,
        tokens=50,
        kill_every=6,
        stop_every=20,
        fill_every=20,
        disk_every=18,
        hostile_per_second=12,
        left_per_second=6,
        stall_timeout=2,
        least_kills=3,
        least_hostile=60,
        judge_memory=False,
    )
    lines: list[str] = []
    report = asyncio.run(Run(plan, seed=7, say=lines.append).run())
    assert report.kept, report.text() + "\n".join(lines[-3:])


def _stream(server: RealServer, body: dict[str, Any], path: str = "/v1/completions") -> list[Any]:
    with server.http.stream("POST", path, json={**body, "stream": True}) as response:
        events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    return [json.loads(event) for event in events if event != "[DONE]"]


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealServer]:
    """A server whose engine can be made to fail by certain prompts."""
    faults = {"abort": CURSED, "raise": CURSED + 1, "memory": CURSED + 2, "compile": 0}
    for name, value in fault_environment(faults).items():
        monkeypatch.setenv(name, value)
    with RealServer(*FLAGS) as server:
        yield server


INNOCENT = {"prompt": "The river", "ignore_eos": True, "temperature": 0.8, "logprobs": 1}


def _innocents(server: RealServer) -> list[list[Any]]:
    bodies = [{**INNOCENT, "seed": i, "max_tokens": 1000} for i in range(6)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: _choices(_stream(server, body)), bodies))


def _choices(events: list[Any]) -> list[Any]:
    return [event["choices"] for event in events]


def _metric(server: RealServer, name: str) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_promise_1_poison_ends_alone(faulty: RealServer) -> None:
    expected = _innocents(faulty)
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(_innocents, faulty)
        time.sleep(0.3)
        poison = {"prompt": [5, CURSED, 6], "max_tokens": 5}
        schema = {"type": "object", "properties": {"poison": {"type": "string"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
        compiled = {"messages": [{"role": "user", "content": "x"}], "response_format": wanted}
        answer = faulty.http.post("/v1/completions", json=poison)
        assert answer.status_code == 500, answer.text
        deadline = time.monotonic() + 10  # the log is read by a thread
        while not (marks := re.findall(r"\(fingerprint (\w+)\) crashed two engines", faulty.text)):
            assert time.monotonic() < deadline, faulty.text
            time.sleep(0.05)
        assert len(marks) == 1, faulty.text
        assert faulty.http.post("/v1/chat/completions", json=compiled).status_code == 500
        assert running.result() == expected
    deaths = _metric(faulty, "tidemill_engine_restarts_total")
    assert deaths == 8, "two together and two alone, for each of them"
    assert _metric(faulty, "tidemill_requests_replayed_total") >= 8
    assert _metric(faulty, "tidemill_engine_recovery_seconds_count") == 8
    again = faulty.http.post("/v1/completions", json={**poison, "seed": 3})
    assert again.status_code == 500
    for words in ("y", "z"):  # the same grammar, and the engine is not asked
        variant = {**compiled, "messages": [{"role": "user", "content": words}]}
        refused = faulty.http.post("/v1/chat/completions", json=variant)
        assert refused.status_code == 500, refused.text
    sound = {**compiled, "response_format": {"type": "json_object"}, "max_tokens": 3}
    assert faulty.http.post("/v1/chat/completions", json=sound).status_code == 200
    deadline = time.monotonic() + 10  # the log is read by a thread
    while (
        faulty.text.count(f"fingerprint {marks[0]}") < 2
        or faulty.text.count("is rejected: quarantined grammar") < 2
    ):
        assert time.monotonic() < deadline, faulty.text
        time.sleep(0.05)
    assert _metric(faulty, "tidemill_engine_restarts_total") == deaths
    assert faulty.stats()["blocks_used"] == 0


def test_promise_1_a_step_that_fails_costs_its_culprit_alone(faulty: RealServer) -> None:
    expected = _innocents(faulty)
    pid = faulty.engine().pid
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(_innocents, faulty)
        time.sleep(0.2)
        bad = faulty.http.post("/v1/completions", json={"prompt": [5, CURSED + 1], "n": 3})
        assert bad.status_code == 500 and "an injected failure of the step" in faulty.text
        hungry = {"prompt": [CURSED + 2, *range(5, 60)], "max_tokens": 30, "ignore_eos": True}
        fed = faulty.http.post("/v1/completions", json=hungry)
        assert fed.status_code == 200, fed.text
        assert running.result() == expected
    assert faulty.engine().pid == pid, "no engine had to end for it"
    assert "it is recomputed in parts" in faulty.text
    assert faulty.stats()["blocks_used"] == 0


def test_promise_10_a_schema_holds_across_a_death() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 200},
            "years": {"type": "array", "items": {"type": "integer"}, "minItems": 120},
        },
        "required": ["name", "years"],
        "additionalProperties": False,
    }
    body = {
        "messages": [{"role": "user", "content": "Tell me of a boat."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "boat", "schema": schema, "strict": True},
        },
        "max_tokens": 500,
        "seed": 4,
        "temperature": 1.0,
        "n": 3,
        "logprobs": True,
    }
    with RealServer(*FLAGS) as server:
        expected = _choices(_stream(server, body, "/v1/chat/completions"))
        with server.http.stream(
            "POST", "/v1/chat/completions", json={**body, "stream": True}
        ) as response:
            events, killed = [], 0
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line[6:]))
                    if len(events) in (15, 40):
                        while _metric(server, "tidemill_engine_restarts_total") < killed:
                            time.sleep(0.01)
                        server.engine().kill()
                        killed += 1
        # The last tokens may have come before the second death was noticed.
        deadline = time.monotonic() + 20
        while _metric(server, "tidemill_engine_restarts_total") < killed:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert killed == 2
        assert _assembled(_choices(events)) == _assembled(expected)


def _assembled(choices: list[Any]) -> dict[int, tuple[str, str | None, list[Any]]]:
    texts: dict[int, tuple[str, str | None, list[Any]]] = {}
    for choice in (c for event in choices for c in event):
        text, reason, tokens = texts.get(choice["index"], ("", None, []))
        entries = (choice.get("logprobs") or {}).get("content") or []
        texts[choice["index"]] = (
            text + (choice["delta"].get("content") or ""),
            choice["finish_reason"] or reason,
            [*tokens, *entries],
        )
    return texts


def test_promise_10_sigterm_is_known_at_once_and_new_work_is_told() -> None:
    with RealServer(*FLAGS, "--drain-timeout", "30") as server:
        body = {"prompt": "The", "max_tokens": 3500, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            lines = response.iter_lines()
            first = next(lines)
            server.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 5
            while server.http.get("/readyz").status_code != 503:
                assert time.monotonic() < deadline, "still ready after SIGTERM"
            assert "shutting down" in server.http.get("/readyz").json()["reason"]
            assert server.http.get("/healthz").status_code == 200
            refused = server.http.post("/v1/completions", json={"prompt": "a"})
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            rest = [first, *lines]
        assert "data: [DONE]" in rest and not any("error" in line for line in rest)
        assert server.process.wait(20) == 0, server.text


def test_promise_10_the_drain_survives_a_death_of_the_engine() -> None:
    with RealServer(*FLAGS, "--drain-timeout", "30") as server:
        body = {"prompt": "The", "max_tokens": 3500, "ignore_eos": True, "seed": 1}
        expected = _choices(_stream(server, body))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(_stream, server, body)
            while not server.stats()["running"]:
                assert not running.done(), "it ended before it was seen to run"
                time.sleep(0.01)
            engine = server.engine()
            server.process.send_signal(signal.SIGTERM)
            engine.kill()
            assert _choices(running.result()) == expected
        assert server.process.wait(20) == 0, server.text


def test_promise_10_it_comes_up_clean_after_kill_9(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    with RealServer(*FLAGS) as server:
        engine = server.engine()
        # The engine first stopped, so that neither can clear up.
        engine.suspend()
        os.kill(server.process.pid, signal.SIGKILL)
        engine.kill()
        psutil.wait_procs([engine], 5)
    (left,) = folder.iterdir()
    with RealServer(*FLAGS) as server:
        assert left.exists(), "too young to be anybody's for certain"
        os.utime(left, (0, 0))
        server.stop()
    foreign = folder / "tidemill-mine"
    foreign.mkdir()
    (foreign / "file").write_text("not an engine's")
    os.utime(foreign, (0, 0))
    with RealServer(*FLAGS) as server:
        assert not left.exists() and foreign.exists()
        living = {path for path in folder.iterdir() if path != foreign}
        assert len(living) == 1
        server.stop()
    assert _names(folder) == {"tidemill-mine"}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_promise_10_a_model_replaced_under_the_server_is_not_mixed_in(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(bundled_models()["brook"], model)
    with RealServer(str(model), *FLAGS) as server:
        stream = {"prompt": "The", "max_tokens": 2000, "ignore_eos": True}
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(_stream, server, stream)
            while not server.stats()["running"]:
                time.sleep(0.01)
            weights = model / "model.safetensors"
            data = bytearray(weights.read_bytes())
            data[-300_000:] = bytes(300_000)
            weights.with_suffix(".new").write_bytes(data)
            weights.with_suffix(".new").rename(weights)
            server.engine().kill()
            last = running.result()[-1]
        assert "model.safetensors has been replaced" in last["error"]["message"]
        assert server.wait(30) == 1
        assert "stopping: the model's file" in server.text and "Traceback" not in server.text
