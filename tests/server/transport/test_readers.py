"""Which connections are watched for clients that do not read, and when one is cut."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.server.transport import readers
from tidemill.server.transport.readers import SlowReaders


class FakeTransport(asyncio.Transport):
    """One with so many bytes to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.aborted = True


class Clock:
    """Time that passes when it is told to, with a look each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(readers, "monotonic", lambda: self.now)
        monkeypatch.setattr(readers, "CHECK_SECONDS", 0.001)

    async def pass_(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0.02)


def _timers() -> int:
    loop = asyncio.get_running_loop()
    return sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]


async def test_nothing_is_looked_at_when_all_is_answered_and_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, cuts = Clock(monkeypatch), list[int]()
    watcher = SlowReaders(20.0, lambda: cuts.append(1))
    answering = [True]
    transport = FakeTransport()
    assert _timers() == 0
    watcher.watch(transport, lambda: answering[0])
    await clock.pass_(30)
    assert _timers() == 1  # a long answer, of which all is read
    transport.waiting, answering[0] = 1000, False
    await clock.pass_(1)
    assert _timers() == 1  # answered, but its end is not read
    transport.waiting = 0
    await clock.pass_(1)
    assert _timers() == 0 and not cuts and not transport.aborted


async def test_who_makes_no_progress_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cuts = Clock(monkeypatch), list[int]()
    watcher = SlowReaders(20.0, lambda: cuts.append(1))
    slow, stuck, gone = FakeTransport(), FakeTransport(), FakeTransport()
    for transport in (slow, stuck, gone):
        transport.waiting = 2**18
        watcher.watch(transport, lambda: True)
    await clock.pass_(0)
    slow.waiting -= 2**14  # just enough
    stuck.waiting -= 2**14 - 1
    await clock.pass_(15)
    watcher.forget(gone)
    await clock.pass_(6)
    assert (slow.aborted, stuck.aborted, gone.aborted) == (False, True, False)
    await clock.pass_(30)
    assert slow.aborted and not gone.aborted and len(cuts) == 2
    assert _timers() == 0


async def test_who_reads_half_of_the_little_that_waits_makes_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, cuts = Clock(monkeypatch), list[int]()
    watcher = SlowReaders(20.0, lambda: cuts.append(1))
    transport = FakeTransport()
    watcher.watch(transport, lambda: True)
    for waiting in (4096, 2048, 1024, 512):
        transport.waiting = waiting
        await clock.pass_(15)
    assert not cuts
