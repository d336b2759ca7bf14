"""Several supervised engines in one process: their memory is given back, taken and measured."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from helpers.drive import request

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import EngineRequest
from tidemill.engine import spawn
from tidemill.engine.reports import LoadProgress
from tidemill.engine.supervisor import SupervisedEngine, Supervision
from tidemill.loading.locate import bundled_models
from tidemill.worker.needs import memory_needs

MIB = 2**20
KV = 80 * MIB  # large enough to be prefaulted


def config(folder: Path, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "model": str(bundled_models()["brook"]),
        "served_name": "brook",
        "kv_memory": KV,
        "max_model_len": 1024,
        "threads": 1,
        "packed_cache": str(folder / "packed"),
        **changes,
    }
    return EngineConfig(**settings)  # type: ignore[arg-type]


@pytest.fixture
async def opened() -> AsyncIterator[list[SupervisedEngine]]:
    """Engines that are closed when the test ends, however it does."""
    engines: list[SupervisedEngine] = []
    yield engines
    for engine in engines:
        await engine.close()


async def _open(
    opened: list[SupervisedEngine], asked: EngineConfig, **options: object
) -> SupervisedEngine:
    engine = await SupervisedEngine.open(asked, log_level="error", **options)  # type: ignore[arg-type]
    opened.append(engine)
    return engine


async def _answer(engine: SupervisedEngine, asked: EngineRequest) -> list[int]:
    return [token async for output in engine.submit(asked) for token in output.token_ids]


def _requests(tag: str, count: int, tokens: int) -> list[EngineRequest]:
    return [
        request(
            f"{tag}{i}",
            [5 + (11 * i + j) % 4000 for j in range(40 + 30 * i)],
            tokens,
            seed=i,
            temperature=0.8,
            salt=tag,
        )
        for i in range(count)
    ]


async def _fill(engine: SupervisedEngine) -> None:
    """Use the cache once."""
    count = -(-engine.info.num_blocks * engine.info.block_size // 900)
    texts = [[5 + (13 * i + j) % 3000 for j in range(900)] for i in range(count)]
    await asyncio.gather(
        *(_answer(engine, request(f"fill{i}", text, 1)) for i, text in enumerate(texts))
    )


async def _process_bytes(engine: SupervisedEngine) -> int:
    report = await engine.memory.report()
    assert report.process is not None
    return report.process


async def test_two_engines_one_of_which_is_killed(
    opened: list[SupervisedEngine], tmp_path: Path
) -> None:
    recovered: list[object] = []
    supervision = Supervision(on_recovery=recovered.append)
    first = await _open(opened, config(tmp_path), supervision=supervision)
    second = await _open(opened, config(tmp_path, quantize="q8_0"))
    assert first.pid != second.pid
    want = [await _answer(first, one) for one in _requests("calm", 4, 250)]
    other = [await _answer(second, one) for one in _requests("calm", 4, 250)]
    assert want != other, "two models"
    before = first._tokens
    tasks = [
        asyncio.gather(*(_answer(engine, one) for one in _requests("storm", 4, 250)))
        for engine in (first, second)
    ]
    while first._tokens < before + 100:
        await asyncio.sleep(0.001)
    pid = second.pid
    os.kill(first.pid, signal.SIGKILL)
    assert await tasks[0] == want and await tasks[1] == other
    assert len(recovered) == 1 and second.pid == pid


async def test_a_smaller_cache_gives_its_memory_back(
    opened: list[SupervisedEngine], tmp_path: Path
) -> None:
    engine = await _open(opened, config(tmp_path, kv_reserve=2 * KV))
    asked = _requests("r", 1, 50)[0]
    want = await _answer(engine, asked)
    await _fill(engine)
    full = await _process_bytes(engine)
    needs = memory_needs(config(tmp_path))
    off = full - needs.total(KV)
    assert abs(off) < 20 * MIB, f"{full / MIB:.0f} MiB, {off / MIB:.0f} more than predicted"
    memory = await engine.memory.resize(20 * MIB)
    assert memory.kv <= 20 * MIB and engine.info.kv_bytes == memory.kv
    assert engine.info.num_blocks == memory.kv_blocks
    shrunk = await _process_bytes(engine)
    # 60 MiB went back, give or take what the allocator keeps: far from all of it, or none.
    cut = full - 60 * MIB
    assert shrunk < cut + 20 * MIB, f"{full / MIB:.0f} to {shrunk / MIB:.0f} MiB"
    assert await _answer(engine, _requests("s", 1, 50)[0]) == want
    await _fill(engine)
    await asyncio.sleep(2.5)  # the time without steps after which pages are taken ahead
    refilled = await _process_bytes(engine)
    assert refilled < cut + 20 * MIB, f"{full / MIB:.0f} to {refilled / MIB:.0f} MiB"
    # An engine that takes its place has the same size, and grows beyond the first one.
    os.kill(engine.pid, signal.SIGKILL)
    assert await _answer(engine, _requests("t", 1, 50)[0]) == want
    report = await engine.memory.report()
    assert report.engine is not None and report.engine.kv_blocks == memory.kv_blocks
    grown = await engine.memory.resize(2 * KV)
    assert KV < grown.kv <= 2 * KV and grown.kv == grown.kv_most == engine.info.kv_bytes


async def test_asleep_little_is_left_and_awake_the_answer_is_the_same(
    opened: list[SupervisedEngine], tmp_path: Path
) -> None:
    engine = await _open(opened, config(tmp_path))
    want = await _answer(engine, _requests("a", 1, 50)[0])
    await _fill(engine)
    full = await _process_bytes(engine)
    weights = engine.info.weight_bytes
    for keep in (False, True):
        memory = await engine.memory.sleep(keep_prefixes=keep)
        assert memory.asleep and memory.weights == memory.kv == 0
        asleep = await _process_bytes(engine)
        if not keep:
            assert asleep < full - weights - 20 * MIB, f"{full / MIB:.0f} to {asleep / MIB:.0f}"
        with pytest.raises(TidemillError, match="woken") as caught:
            engine.submit(_requests("early", 1, 1)[0])
        assert caught.value.kind is ErrorKind.INTERNAL
        assert not (await engine.memory.wake()).asleep
        assert await _process_bytes(engine) >= asleep + 0.9 * weights, "the weights are not back"
        assert await _answer(engine, _requests("b", 1, 50)[0]) == want
    assert list((tmp_path / "packed").glob("*.part")) == []


async def test_an_engine_that_dies_asleep_is_replaced_when_it_wakes(
    opened: list[SupervisedEngine], tmp_path: Path
) -> None:
    engine = await _open(opened, config(tmp_path))
    want = await _answer(engine, _requests("a", 1, 30)[0])
    await engine.memory.sleep()
    pid = engine.pid
    os.kill(pid, signal.SIGKILL)
    while engine.problem is None or "slept" not in engine.problem:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert engine.pid == pid, "it was replaced while nobody needed it"
    assert (await engine.memory.report()).engine is None
    await engine.memory.wake()
    assert engine.pid != pid and await _answer(engine, _requests("b", 1, 30)[0]) == want
    # One that died a moment ago, which nobody has noticed.
    await engine.memory.sleep()
    os.kill(engine.pid, signal.SIGKILL)
    await engine.memory.wake()
    assert await _answer(engine, _requests("c", 1, 30)[0]) == want


async def test_a_backend_that_cannot_sleep_says_so(
    opened: list[SupervisedEngine], tmp_path: Path
) -> None:
    engine = await _open(opened, config(tmp_path, packed_cache="off"))
    await _answer(engine, _requests("a", 1, 3)[0])
    with pytest.raises(TidemillError, match="unload the model") as caught:
        await engine.memory.sleep()
    assert caught.value.kind is ErrorKind.UNSUPPORTED
    assert len(await _answer(engine, _requests("b", 1, 3)[0])) == 3


async def test_loading_is_told_in_numbers(opened: list[SupervisedEngine], tmp_path: Path) -> None:
    told: list[LoadProgress] = []
    engine = await _open(opened, config(tmp_path), on_load=told.append)
    async with asyncio.timeout(30):
        while not told or told[-1].loaded < told[-1].total:
            await asyncio.sleep(0.01)
    assert engine.loaded == told[-1] == LoadProgress(*[engine.info.weight_bytes] * 2)
    assert [one.loaded for one in told] == sorted(one.loaded for one in told)


async def test_a_load_in_the_background_has_a_small_share_until_it_is_done(
    opened: list[SupervisedEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def note(pid: int, nice: int) -> bool:
        told.append((pid, nice))
        return len(told) != 2  # the system refuses the first try to raise it

    monkeypatch.setattr(spawn, "set_group_priority", note)
    monkeypatch.setattr(spawn, "PRIORITY_SECONDS", 0.01)
    await _open(opened, config(tmp_path))
    assert told == []
    engine = await _open(opened, config(tmp_path), background=True)
    async with asyncio.timeout(30):
        while len(told) < 3:
            await asyncio.sleep(0.01)
    assert told == [(engine.pid, 5), (engine.pid, 0), (engine.pid, 0)]
    # The engine that takes its place has streams that wait for it.
    os.kill(engine.pid, signal.SIGKILL)
    assert len(await _answer(engine, _requests("a", 1, 3)[0])) == 3
    assert len(told) == 3
