"""An engine that is ready before its weights are: it says so, and ends when they never will be."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import packers
from helpers.fake_backend import FakeBackend
from helpers.fake_engine import fake_core
from helpers.quantized_folder import write

from tidemill.base.errors import ErrorKind, LoadCallback, TidemillError, model_file_error
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import EngineRequest
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import Fatal, Stats
from tidemill.engine.core import EngineCore, Message
from tidemill.engine.offline import InprocEngine
from tidemill.engine.supervisor import Recovery, SupervisedEngine, Supervision

SECONDS = 60.0


def _request(i: int = 0) -> EngineRequest:
    return EngineRequest(
        request_id=f"r{i}",
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(max_tokens=3, ignore_eos=True),
    )


# --- the core ---


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> list[LoadCallback]:
    """Callbacks that the core registers with a backend whose weights are not loaded yet."""
    registered: list[LoadCallback] = []

    def later(self: FakeBackend, on_loaded: LoadCallback) -> bool:
        registered.append(on_loaded)
        return False

    monkeypatch.setattr(FakeBackend, "when_loaded", later)
    return registered


def _ask(core: EngineCore) -> tuple[queue.SimpleQueue[Message], Callable[[], Stats]]:
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    client = core.connect(messages.put)

    def stats() -> Stats:
        core.request_stats(client, 1)
        found = messages.get(timeout=SECONDS)
        assert isinstance(found, Stats)
        return found

    return messages, stats


def test_statistics_say_that_weights_are_being_loaded(callbacks: list[LoadCallback]) -> None:
    core, _ = fake_core()
    _, stats = _ask(core)
    assert stats().stats.loading
    callbacks[0](None)
    assert not stats().stats.loading
    core.close()


def test_an_idle_engine_ends_when_its_weights_cannot_be_loaded(
    callbacks: list[LoadCallback],
) -> None:
    core, _ = fake_core()
    messages, _ = _ask(core)
    error = model_file_error("layers.0.attn.q.weight is damaged", param="layers.0.attn.q.weight")
    callbacks[0](error)
    fatal = messages.get(timeout=SECONDS)
    assert isinstance(fatal, Fatal) and fatal.error is not None
    assert "layers.0.attn.q.weight is damaged" in fatal.message
    assert (fatal.error.kind, fatal.error.param) == ("model_file", "layers.0.attn.q.weight")
    with pytest.raises(TidemillError, match=r"layers\.0\.attn\.q\.weight is damaged"):
        core.submit(1, _request())
    core.close()
    assert not core.alive


def test_closing_waits_for_no_weights(
    callbacks: list[LoadCallback], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[FakeBackend] = []
    monkeypatch.setattr(FakeBackend, "stop_loading", lambda self: stopped.append(self))
    core, backend = fake_core()
    core.close()
    assert stopped == [backend]
    core, _ = fake_core()
    callbacks[1](None)
    core.close()
    assert stopped == [backend]


# --- with a model ---


def _damaged(folder: Path) -> EngineConfig:
    """A model whose projections cannot be packed, which only their bytes show: scales that float16
    does not hold."""

    def pack(value: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        parts, values = packers.int8_rows(value)
        scale = parts[".weight_scale"].astype(np.float32) * np.float32(1e9)
        return {**parts, ".weight_scale": scale}, values

    write(folder, pack, {"quant_method": "compressed-tensors", "format": "int-quantized"})
    return _config(folder)


def _config(folder: Path, **changes: Any) -> EngineConfig:
    return EngineConfig(
        model=str(folder), served_name="m", kv_memory=2**22, dtype="bfloat16", threads=2, **changes
    )


def test_a_damaged_model_ends_requests_with_the_name_of_the_tensor(tmp_path: Path) -> None:
    engine = InprocEngine.open(_damaged(tmp_path))
    for i in range(2):
        with pytest.raises(TidemillError, match=r"q_proj.*does not fit float16") as caught:
            list(engine.run([_request(i)]))
        assert caught.value.kind is ErrorKind.UNSUPPORTED
    engine.close()


def test_a_check_that_runs_steps_fails_the_start(tmp_path: Path) -> None:
    config = _damaged(tmp_path)
    with pytest.raises(TidemillError, match=r"q_proj.*does not fit float16"):
        InprocEngine.open(_config(Path(config.model), kv_dtype="int8"))


async def test_an_engine_whose_model_is_damaged_is_not_replaced(tmp_path: Path) -> None:
    seen: list[Recovery] = []
    supervision = Supervision(on_recovery=seen.append)
    engine = await SupervisedEngine.open(
        _damaged(tmp_path), log_level="critical", supervision=supervision
    )
    pid = engine.pid
    try:
        async with asyncio.timeout(SECONDS):
            error = await engine.failed
            assert "q_proj" in error.message and "cannot be loaded" in error.message
            with pytest.raises(TidemillError, match="q_proj"):
                engine.submit(_request())
        assert engine.problem is not None and "q_proj" in engine.problem
        assert not seen and engine.pid == pid
    finally:
        await engine.close()


async def test_what_packing_lost_is_reported_when_it_is_known(tmp_path: Path) -> None:
    write(tmp_path, packers.nf4, {"quant_method": "bitsandbytes"})
    lines: list[str] = []
    engine = await SupervisedEngine.open(_config(tmp_path, quantize="q8_0"), lines.append)
    try:
        async with asyncio.timeout(SECONDS):
            while not any("14 weights were requantized" in line for line in lines):
                await asyncio.sleep(0.01)
            assert any("weights loaded in" in line for line in lines)
            assert not (await engine.stats()).loading
    finally:
        await engine.close()
