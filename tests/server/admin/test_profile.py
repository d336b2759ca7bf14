"""POST /admin/profile and `tidemill profile`, of an engine that a script plays."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.fake_loader import FakeLoaded
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.cli.profile import profile
from tidemill.contract.profile import EngineProfile, KernelTime, MachineRates, StepCounters
from tidemill.server.context import ServerContext

EVENT = struct.pack("=qqiihhbbbb", 1_000, 9_000, 2, 3, 0, -1, 0, 0, 0, -1)
KERNELS = (KernelTime("head", "product", "Q8_0", "int8", True, 5, 1.0, 1.5, 10**9, 2 * 10**9),)


def made(seconds: float, *, events: int, rates: bool) -> EngineProfile:
    counters = StepCounters(
        steps=3, rows=4, tokens=5, seconds=1.0, kernels=KERNELS,
        events=EVENT if events else b"", parts=("other",), kernel_names=("between_loops",),
    )  # fmt: skip
    return EngineProfile(
        seconds=seconds, steps=3, counters=counters, idle_seconds=0.5, waiting_seconds=1.0,
        submitting_seconds=0.25, thread_cpu_seconds=0.5, process_cpu_seconds=2.0,
        rates=MachineRates(read_bandwidth=2e9) if rates else None,
    )  # fmt: skip


def profiled_context() -> tuple[ServerContext, FakeLoaded]:
    context = fake_context(ScriptedEngine())
    loaded = context.host.default.loaded
    assert isinstance(loaded, FakeLoaded)

    async def take(seconds: float, events: int, rates: bool) -> EngineProfile:
        return made(seconds, events=events, rates=rates)

    loaded.profiled = take
    return context, loaded


def test_the_answer_is_the_profile() -> None:
    context, _ = profiled_context()
    with serving(context) as url:
        found = httpx.post(f"{url}/admin/profile", json={"model": "tiny", "seconds": 2}).json()
        assert found["model"] == "tiny" and found["seconds"] == 2.0
        assert found["kernels"][0]["of_bandwidth"] == 0.5 and "trace" not in found
        assert found["processor_seconds"]["api"] >= 0.0
        body = {"seconds": 2, "trace": True, "roofline": False}
        found = httpx.post(f"{url}/admin/profile", json=body).json()
        assert found["roofline"] is None and "of_bandwidth" not in found["kernels"][0]
        assert found["trace"]["traceEvents"][-1]["args"] == {"rows": 2, "tokens": 3}


@pytest.mark.parametrize("seconds", [0, -1, 300.1, "a"])
def test_it_is_bounded(seconds: object) -> None:
    context, _ = profiled_context()
    with serving(context) as url:
        answer = httpx.post(f"{url}/admin/profile", json={"seconds": seconds})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "seconds"
        assert httpx.post(f"{url}/admin/profile", json={"model": "other"}).status_code == 404


def test_why_there_is_none_is_told() -> None:
    context, loaded = profiled_context()

    async def busy(seconds: float, events: int, rates: bool) -> EngineProfile:
        raise TidemillError(ErrorKind.OVERLOADED, "one at a time", retryable=True)

    loaded.profiled = busy
    with serving(context) as url:
        answer = httpx.post(f"{url}/admin/profile", json={})
        assert answer.status_code == 429 and "one at a time" in answer.text
        context.host.default.loaded = None
        answer = httpx.post(f"{url}/admin/profile", json={})
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "model_not_loaded"


def test_a_client_that_leaves_ends_it() -> None:
    context, loaded = profiled_context()
    begun, ended = threading.Event(), threading.Event()

    async def slow(seconds: float, events: int, rates: bool) -> EngineProfile:
        begun.set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.set()
            raise
        raise AssertionError

    def leave(url: str) -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json={"seconds": 300}, timeout=0.3)

    loaded.profiled = slow
    with serving(context) as url:
        leaving = threading.Thread(target=leave, args=(f"{url}/admin/profile",))
        leaving.start()
        assert begun.wait(20) and ended.wait(20)
        leaving.join()


def test_the_command_shows_it_and_writes_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context, _ = profiled_context()
    trace = tmp_path / "t.json"

    def run(url: str, **given: Any) -> str:
        flags = {
            "model": None,
            "target": None,
            "seconds": 2.0,
            "trace": None,
            "roofline": True,
            "as_json": False,
        }
        profile(**{**flags, **given}, url=url, api_key=None)
        return capsys.readouterr().out

    with serving(context) as url:
        shown = run(url)
        assert shown.startswith("tiny  ") and "product Q8_0, few rows" in shown
        assert run(url, trace=trace) == shown
        assert json.loads(trace.read_text())["traceEvents"]
        assert json.loads(run(url, as_json=True, model="tiny"))["steps"]["count"] == 3
        with pytest.raises(TidemillError, match="at most 300"):
            run(url, seconds=301.0)
        with pytest.raises(TidemillError, match="more than 0"):
            run(url, seconds=0.0)
