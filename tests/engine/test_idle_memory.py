"""What an idle engine gives back, and that no answer depends on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from helpers.drive import request
from helpers.real_engine import real_engine

from tidemill.contract.request import EngineRequest
from tidemill.engine import idle
from tidemill.engine.idle import IdleMemory
from tidemill.engine.offline import InprocEngine
from tidemill.executor.base import Executor
from tidemill.memory.lease import KVMemory

BLOCKS, SIZE = 400, 16
PROMPT = [3 + i % 90 for i in range(5 * SIZE + 3)]


class Noted:
    """An executor's `give_back`, noted."""

    def __init__(self) -> None:
        self.given: list[tuple[int, ...]] = []

    def __call__(self, executor: Executor) -> Executor:
        give_back = executor.give_back

        def noting(group: int, blocks: Sequence[int]) -> None:
            give_back(group, blocks)
            self.given.append(tuple(blocks))

        executor.give_back = noting  # type: ignore[method-assign]
        return executor


class Nothing:
    """An executor with no memory to give back."""

    def give_back(self, group: int, blocks: Sequence[int]) -> None:
        pass


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _ask(engine: InprocEngine, *requests: EngineRequest) -> list[int]:
    return [token for output in engine.run(list(requests)) for token in output.token_ids]


def test_an_idle_engine_gives_back_what_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_TIMES", (1.2, 1.4))
    noted = Noted()
    engine = real_engine("native", num_blocks=BLOCKS, block_size=SIZE, wrap=noted)
    try:
        asked = request("r", PROMPT, max_tokens=8, ignore_eos=True)
        answer = _ask(engine, asked)
        _until(lambda: len(noted.given) == 2)
        assert noted.given[0] == tuple(range(5, BLOCKS)), "five full blocks of the prompt stay"
        assert noted.given[1] == noted.given[0], "they were used less than an hour ago"
        assert _ask(engine, asked) == answer
        assert engine.stats.cached_tokens == 5 * SIZE
        monkeypatch.setattr("tidemill.memory.lease.KEEP_SECONDS", 0.0)
        _until(lambda: len(noted.given) == 4)
        assert noted.given[2] == tuple(range(BLOCKS)), "old prefixes go"
        assert _ask(engine, asked) == answer
        assert engine.stats.cached_tokens == 5 * SIZE, "nothing more was found"
    finally:
        engine.close()


def test_idle_time_counts_from_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr(idle, "monotonic", lambda: now)
    monkeypatch.setattr(idle, "give_back", lambda: None)
    executor = cast(Executor, Nothing())
    memory = IdleMemory(KVMemory((8,), SIZE))
    assert memory.due() == 110.0, "after a minute"
    now = 80.0
    assert memory.due() == 110.0, "a command does not begin it anew"
    memory.computing()
    assert memory.due() == 140.0
    memory.give_back(executor)
    assert memory.due() == 80.0 + 60.0 + 3600.0, "and after an hour more"
    memory.give_back(executor)
    assert memory.due() == float("inf")
    memory.computing()
    assert memory.due() == 140.0
