"""Who tries keys waits; who has one does not."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.server.access import wrong_keys
from tidemill.server.access.wrong_keys import FREE, MAX_ADDRESSES, WrongKeys
from tidemill.server.errors import Rejection


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(wrong_keys.asyncio, "sleep", sleep)
    return found


async def test_different_wrong_keys_wait_longer_and_longer(waits: list[float]) -> None:
    tries = WrongKeys()
    for number in range(FREE + 10):
        await tries.penalty("a", f"guess-{number}")
    assert len(waits) == 10
    assert waits == sorted(waits)
    assert waits[0] < 0.2 < waits[-1] == wrong_keys.LONGEST_DELAY
    await tries.penalty("b", "guess")  # of another address
    assert len(waits) == 10


async def test_a_wrong_configuration_does_not_wait(waits: list[float]) -> None:
    tries = WrongKeys()
    for number in range(1000):
        await tries.penalty("a", f"old-{number % 3}")
    assert waits == []


async def test_they_are_forgotten(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    tries, now = WrongKeys(), 0.0
    monkeypatch.setattr(wrong_keys, "monotonic", lambda: now)
    for number in range(FREE):
        await tries.penalty("a", f"guess-{number}")
    now = wrong_keys.FORGET_SECONDS
    await tries.penalty("a", "once more")
    assert waits == []
    await tries.penalty("a", "and again")
    assert len(waits) == 1


async def test_memory_is_bounded(waits: list[float]) -> None:
    tries = WrongKeys()
    for number in range(MAX_ADDRESSES + 100):
        await tries.penalty(f"addr-{number}", "x")
    assert len(tries) == MAX_ADDRESSES


async def test_too_many_that_wait_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrong_keys, "MAX_WAITING", 2)
    monkeypatch.setattr(wrong_keys, "FREE", 0)
    tries = WrongKeys()
    waiting = [asyncio.ensure_future(tries.penalty("a", str(n))) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Rejection) as caught:
        await tries.penalty("a", "third")
    assert caught.value.problem.status == 429
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await tries.penalty("b", "x")
