"""What an idle engine gives back, and that no answer depends on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from helpers.drive import request
from helpers.real_engine import real_engine

from tidemill.contract.request import EngineRequest
from tidemill.engine import idle
from tidemill.engine.idle import IdleMemory
from tidemill.engine.offline import InprocEngine
from tidemill.executor.inproc import InprocExecutor
from tidemill.memory.lease import KEEP_SECONDS, KVMemory

BLOCKS, SIZE = 400, 16
PROMPT = [3 + i % 90 for i in range(5 * SIZE + 3)]


class Noted:
    """An executor's `give_back`, noted."""

    def __init__(self, engine: InprocEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[tuple[int, ...]] = []
        executor = engine._core._executor
        assert isinstance(executor, InprocExecutor)
        give_back = executor.give_back

        def noting(group: int, blocks: Sequence[int]) -> None:
            give_back(group, blocks)
            self.given.append(tuple(blocks))

        monkeypatch.setattr(executor, "give_back", noting)


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _ask(engine: InprocEngine, *requests: EngineRequest) -> list[int]:
    return [token for output in engine.run(list(requests)) for token in output.token_ids]


def test_an_idle_engine_gives_back_what_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_TIMES", (1.2, 1.4))
    engine = real_engine("native", num_blocks=BLOCKS, block_size=SIZE)
    try:
        noted = Noted(engine, monkeypatch)
        asked = request("r", PROMPT, max_tokens=8, ignore_eos=True)
        answer = _ask(engine, asked)
        _until(lambda: len(noted.given) == 2)
        assert noted.given[0] == tuple(range(5, BLOCKS)), "five full blocks of the prompt stay"
        assert noted.given[1] == noted.given[0], "they were used less than an hour ago"
        assert _ask(engine, asked) == answer
        assert engine._core._scheduler.stats().cached_tokens == 5 * SIZE
        monkeypatch.setattr("tidemill.memory.lease.KEEP_SECONDS", 0.0)
        _until(lambda: len(noted.given) == 4)
        assert noted.given[2] == tuple(range(BLOCKS)), "old prefixes go"
        assert _ask(engine, asked) == answer
        assert engine._core._scheduler.stats().cached_tokens == 5 * SIZE, "nothing more was found"
    finally:
        engine.close()


def test_idle_time_counts_from_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr(idle, "monotonic", lambda: now)
    monkeypatch.setattr(idle, "give_back", lambda: None)
    engine = real_engine("native", num_blocks=8)
    try:
        memory = IdleMemory(KVMemory((8,), SIZE))
        assert memory.due() == 50.0 + idle.IDLE_SECONDS
        now = 80.0
        assert memory.due() == 50.0 + idle.IDLE_SECONDS, "a command does not begin it anew"
        memory.computing()
        assert memory.due() == 80.0 + idle.IDLE_SECONDS
        memory.give_back(engine._core._executor)
        assert memory.due() == 80.0 + idle.IDLE_SECONDS + KEEP_SECONDS
        memory.give_back(engine._core._executor)
        assert memory.due() == float("inf")
    finally:
        engine.close()
