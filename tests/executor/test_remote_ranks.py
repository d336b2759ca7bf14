"""Stages behind TCP connections, with real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest

import tidemill
from tidemill import LLM, SamplingParams
from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import EngineRequest
from tidemill.engine.supervisor import Recovery, SupervisedEngine, Supervision
from tidemill.executor.ranks.host import RankHost
from tidemill.transfer.link import KEY_VARIABLE, key_of

BROOK = str(Path(tidemill.__file__).parent / "assets" / "brook")
KEY = "a key for tests alone"
SETTINGS = {"kv_memory": 8 * 2**20, "threads": 1}

Hosts = Callable[..., str]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Starts hosts of a model; returns their addresses as a setting has them."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with ExitStack() as stack:

        def start(count: int, model: str = BROOK, key: str = KEY) -> str:
            def localize(config: EngineConfig) -> EngineConfig:
                return msgspec.structs.replace(config, model=model, packed_cache="off")

            found = [RankHost("127.0.0.1:0", key_of(key), localize) for _ in range(count)]
            for host in found:
                stack.callback(host.close)
            return ",".join(host.address for host in found)

        yield start


def _rank_processes() -> list[psutil.Process]:
    children = psutil.Process(os.getpid()).children()
    return [c for c in children if "tidemill.executor.ranks.process" in c.cmdline()]


def _answers(llm: LLM) -> list[object]:
    params = SamplingParams(n=2, temperature=0.9, seed=11, max_tokens=12, logprobs=2)
    outputs = llm.generate([list(range(3, 60)), [5, 6, 7]], params)
    return [(choice.token_ids, choice.logprobs) for out in outputs for choice in out.outputs]


def test_three_machines_answer_as_one_and_serve_the_next_engine(hosts: Hosts) -> None:
    with LLM(BROOK, **SETTINGS) as llm:
        want = _answers(llm)
    peers = hosts(2)
    for ends in (True, False):
        with LLM(BROOK, pipeline_peers=peers, **SETTINGS) as llm:
            ranks = _rank_processes()
            assert len(ranks) == 2
            assert _answers(llm) == want
            if not ends:
                ranks[1].kill()
                with pytest.raises(TidemillError, match="process") as error:
                    _answers(llm)
                assert error.value.kind is ErrorKind.UNAVAILABLE
        for rank in ranks:
            rank.wait(10)


async def test_a_stream_goes_on_when_a_machine_is_lost(hosts: Hosts) -> None:
    seen: list[Recovery] = []
    config = EngineConfig(model=BROOK, served_name="tiny", pipeline_peers=hosts(1), **SETTINGS)  # type: ignore[arg-type]
    supervision = Supervision(on_recovery=seen.append, stall_timeout=2.0)
    engine = await SupervisedEngine.open(config, log_level="error", supervision=supervision)

    async def tokens(name: str, told: asyncio.Event) -> list[int]:
        found: list[int] = []
        sampling = SamplingParams(temperature=0.9, seed=5, max_tokens=1800, ignore_eos=True)
        request = EngineRequest(
            request_id=name,
            prompt_token_ids=tuple(range(3, 60)),
            sampling=sampling,
            cache_salt=name,
        )
        async for output in engine.submit(request):
            found += output.token_ids
            if len(found) > 20:
                told.set()
        return found

    try:
        want = await tokens("calm", asyncio.Event())
        for number in (signal.SIGKILL, signal.SIGSTOP):
            told = asyncio.Event()
            running = asyncio.ensure_future(tokens(number.name, told))
            await told.wait()
            [rank] = _rank_processes()
            rank.send_signal(number)
            async with asyncio.timeout(60):
                assert await running == want
            assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE
        assert any(recovery.replayed for recovery in seen)
    finally:
        await engine.close()


def _fails(peers: str) -> TidemillError:
    with pytest.raises(TidemillError) as error:
        LLM(BROOK, pipeline_peers=peers, **SETTINGS)
    return error.value


def test_who_has_another_key_or_none_is_refused(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.executor.ranks.remote.HANDSHAKE_SECONDS", 0.1)
    peers = hosts(1, key="another key for tests")
    found = _fails(peers)
    assert (found.kind, found.param) == (ErrorKind.CONFIG, "pipeline_peers")
    assert KEY_VARIABLE in found.message
    monkeypatch.delenv(KEY_VARIABLE)
    assert "needs a key" in _fails(peers).message
    assert not _rank_processes()


def test_another_model_is_refused_by_name(hosts: Hosts, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(BROOK, other)
    weights = next(other.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(data)
    peers = hosts(1, model=str(other))
    found = _fails(peers)
    assert (found.kind, found.param) == (ErrorKind.CONFIG, "pipeline_peers")
    assert peers in found.message
    assert "would compute other bits" in found.message


def test_a_machine_that_is_not_there_or_taken_is_named(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.executor.ranks.remote.HANDSHAKE_SECONDS", 0.1)
    found = _fails("127.0.0.1:9")
    assert (found.kind, found.retryable) == (ErrorKind.UNAVAILABLE, True)
    assert "127.0.0.1:9" in found.message
    peers = hosts(1)
    with LLM(BROOK, pipeline_peers=peers, **SETTINGS):
        assert "another engine" in _fails(peers).message
