"""When freed memory is given back."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.base import heap


def test_once_some_time_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    async def bursts() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(heap, "give_back", lambda: given.append(loop.time()))
        giver = heap.Giver(0.1)
        for _ in range(2):
            begun = loop.time()
            for _ in range(20):
                giver.done()
                await asyncio.sleep(0.002)
            await asyncio.sleep(0.3)
            assert given.pop() - begun >= 0.099 and not given

    asyncio.run(bursts())


def test_a_loop_that_ends_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        heap.Giver(0.0).done()
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0.01)

    asyncio.run(work())
    assert "Traceback" not in capfd.readouterr().err
