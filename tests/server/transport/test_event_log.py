"""Readers of a log follow it from anywhere, are never waited for, and its memory is bounded."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.server.transport.event_log import EventLog, LogSink


def _event(text: str) -> bytes:
    return b"data: %b\n\n" % text.encode()


async def _all(log: EventLog, start: int = 0) -> list[str]:
    text = b"".join([events async for events in log.follow(start)]).decode()
    return [part.partition("data: ")[2] for part in text.split("\n\n") if part]


def test_readers_get_every_event_once_whenever_they_come() -> None:
    async def run() -> None:
        log = EventLog(10**6)
        sink = LogSink(log)
        early = [asyncio.create_task(_all(log, start)) for start in (0, 5)]
        await asyncio.sleep(0)
        for number in range(200):
            await sink.write(_event(str(number)) + b": keep-alive\n\n", more=number < 199)
            if number % 7 == 0:
                await asyncio.sleep(0)
        expected = [str(n) for n in range(200)]
        assert await early[0] == expected and await early[1] == expected[5:]
        assert await _all(log, 150) == expected[150:] and await _all(log, 200) == []
        assert log.next == 200

    asyncio.run(run())


def test_events_carry_their_numbers() -> None:
    log = EventLog(10**6)
    log.add(_event("a") + _event("b"))
    log.end()

    async def run() -> None:
        found = [events async for events in log.follow(0)]
        assert found == [b"id: 0\ndata: a\n\nid: 1\ndata: b\n\n"]

    asyncio.run(run())


def test_the_oldest_events_are_forgotten() -> None:
    log = EventLog(1000)
    for number in range(500):
        log.add(_event(str(number)))
        assert log.size <= 1000
    log.end()
    assert 0 < log.first < 500 == log.next

    async def run() -> None:
        assert await _all(log, log.first) == [str(n) for n in range(log.first, 500)]
        with pytest.raises(LookupError, match="no longer kept"):
            await _all(log, log.first - 1)

    asyncio.run(run())


def test_watching_ends_with_the_first_event_or_the_end() -> None:
    async def run() -> None:
        log, event = EventLog(1000), asyncio.Event()
        log.watch(event)
        await asyncio.sleep(0)
        assert not event.is_set()
        log.add(_event("a"))
        async with asyncio.timeout(5):
            await event.wait()
        late = asyncio.Event()
        log.watch(late)
        assert late.is_set()

    asyncio.run(run())
