"""Whoever breaks things: one coroutine per way, each counting what it did.

Each can be cancelled at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from soak import hostile
from soak.machine import Machine
from soak.streams import KnownStreams

# Seconds within which a stall must show on /readyz.
NOTICE_SECONDS = 10.0
COUNTED_STREAMS = 8
LEFT_STATES = 7  # in which clients disconnect
FILL_FACTOR = 10


@dataclass(slots=True)
class Tally:
    """What was done, what was noticed, and what was wrong.

    Attributes:
        kills, counted_kills: of engines; those that caught enough streams.
        stops, slowest_notice: engines stopped; seconds until /readyz said so, at worst.
        left: disconnects by state.
        hostile: hostile requests sent; `statuses`: what they were answered.
        filled: the answers to each filling of the queue, by status.
        disk_full: deaths survived without disk.
        wrong: what must not happen.
    """

    kills: int = 0
    counted_kills: int = 0
    stops: int = 0
    slowest_notice: float = 0.0
    left: Counter[str] = field(default_factory=Counter)
    hostile: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    filled: list[Counter[int]] = field(default_factory=list)
    disk_full: int = 0
    wrong: list[str] = field(default_factory=list)


class Injector:
    """Breaks a machine while its known streams run.

    Args:
        machine, streams: whose.
        rng: decides when and what.
        queue_tokens: the server's --max-queue-tokens.
        stall_timeout: the server's --stall-timeout.
    """

    def __init__(
        self,
        machine: Machine,
        streams: KnownStreams,
        rng: random.Random,
        *,
        queue_tokens: int,
        stall_timeout: float,
    ) -> None:
        self.tally = Tally()
        self._machine = machine
        self._streams = streams
        self._rng = rng
        self._queue_tokens = queue_tokens
        self._stall_timeout = stall_timeout
        self._breaking = asyncio.Lock()  # one engine is broken at a time
        self._to_leave_in: list[str] = []

    # -- the engine --------------------------------------------------------------------------

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """End the engine in the middle of many streams (as far as there are many soon)."""
        async with self._breaking:
            deadline = time.monotonic() + 8
            least = self._rng.choice((COUNTED_STREAMS, 16, 32))
            while self._streams.between < least and time.monotonic() < deadline:
                await asyncio.sleep(0.005)
            caught = self._streams.between
            if not self._machine.signal_engine(number):
                return
            self.tally.kills += 1
            self.tally.counted_kills += caught >= COUNTED_STREAMS
            await self._recovered("kill")

    async def stop(self) -> None:
        """Stop the engine for longer than it may stand still."""
        async with self._breaking:
            while self._streams.between < COUNTED_STREAMS:
                await asyncio.sleep(0.01)
            pid = self._machine.engine_pid()
            if not self._machine.signal_engine(signal.SIGSTOP):
                return
            self.tally.stops += 1
            began = time.monotonic()
            # A busy machine may be asked only after the next engine is there: it was noticed.
            while await self._machine.ready() is not None and self._machine.engine_pid() == pid:
                if time.monotonic() > began + 3 * NOTICE_SECONDS:
                    break
                await asyncio.sleep(0.05)
            notice = time.monotonic() - began
            self.tally.slowest_notice = max(self.tally.slowest_notice, notice)
            await self._recovered("stop")
            if self._machine.engine_pid() == pid:
                self.tally.wrong.append("a stopped engine was not replaced")

    async def kill_without_disk(self) -> None:
        """End the engine while nothing can be written."""
        disk = self._machine.disk
        try:
            if disk.real:
                disk.fill()  # here: a thread's would outlast a cancellation, and so be for good
            before = self.tally.kills
            await self.kill()
            self.tally.disk_full += self.tally.kills - before
        finally:
            disk.free()

    async def _recovered(self, after: str) -> None:
        # While the machine notices, /readyz may still be positive: the process tells.
        await asyncio.sleep(0.1)
        if not await self._machine.await_ready():
            self.tally.wrong.append(f"not ready within a minute of a {after}")

    # -- the clients -------------------------------------------------------------------------

    async def leave(self) -> None:
        """Disconnect in a state of its own."""
        body = json.dumps(
            {
                "prompt": "The river",
                "max_tokens": 2000,
                "ignore_eos": True,
                "n": self._rng.choice((1, 3)),
                "stream": self._rng.random() < 0.7,
            }
        ).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        states: dict[str, tuple[bytes, float]] = {
            "connected": (b"", 0.0),
            "within the head": (head[: self._rng.randrange(1, len(head))], 0.0),
            "within the body": (head + body[: self._rng.randrange(1, len(body))], 0.0),
            "sent": (head + body, 0.0),
            "queued or in prefill": (head + body, 0.02),
            "while streaming": (head + body, 0.4),
            "never reading": (head + body, 1.5),
        }
        # All in turn, shuffled: chance would leave one out of a short run now and then.
        assert len(states) == LEFT_STATES
        self._to_leave_in = self._to_leave_in or self._rng.sample(list(states), len(states))
        state = self._to_leave_in.pop()
        data, pause = states[state]
        with contextlib.suppress(OSError):
            reader, writer = await self._connect()
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(pause)
            if state == "while streaming":
                async with asyncio.timeout(5):
                    await reader.read(64)
            if self._rng.random() < 0.5:
                writer.transport.abort()
            writer.close()
        self.tally.left[state] += 1

    async def send_hostile(self, requests: Any) -> None:
        """Send the next hostile request and look at the answer."""
        name, data = next(requests)
        try:
            async with asyncio.timeout(20):
                status = await self._status(data)
        except TimeoutError:  # an OSError too, hence first
            status = -1  # it waits for more, or computes something long: leave
        except (OSError, EOFError):
            status = 0  # cut off, which some deserve
        self.tally.hostile += 1
        self.tally.statuses[status] += 1
        if status == 500:
            self.tally.wrong.append(f"hostile request answered with 500: {name}")

    async def _status(self, data: bytes) -> int:
        reader, writer = await self._connect()
        try:
            writer.write(data)
            return await _read_status(reader)
        finally:
            writer.transport.abort()

    async def fill_queue(self) -> None:
        """Ask for ten times what may wait, at once; what is refused is refused in words."""
        each = 700
        count = FILL_FACTOR * self._queue_tokens // each + 1
        statuses: Counter[int] = Counter()
        go, connected = asyncio.Event(), 0

        async def one() -> None:
            nonlocal connected
            # Prompts of their own, so that the cache is no help; all but the last byte is sent, so
            # that they come at once.
            prompt = [5 + self._rng.randrange(500) for _ in range(each - 100)]
            data = _post({"prompt": prompt, "max_tokens": 100, "ignore_eos": True})
            try:
                reader, writer = await self._connect()
                writer.write(data[:-1])
                await writer.drain()
            finally:
                connected += 1
                if connected == count:
                    go.set()
            try:
                await go.wait()
                writer.write(data[-1:])
                async with asyncio.timeout(120):
                    status = await _read_status(reader)
            finally:
                writer.transport.abort()
            statuses[status] += 1
            if status not in (200, 429, 503):
                self.tally.wrong.append(f"filling the queue: status {status}")

        asked = [asyncio.ensure_future(one()) for _ in range(count)]
        try:
            done = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            for task in asked:
                task.cancel()
        errors = [repr(error) for error in done if isinstance(error, Exception)]
        self.tally.wrong += [f"filling the queue: {error}" for error in errors]
        self.tally.filled.append(statuses)

    async def crowd(self) -> None:
        """Many longer bodies at once: every thread the server may have is started and used."""
        text = " ".join(["tide", "mill", "river"] * 1200)
        body = json.dumps({"prompt": text, "max_tokens": 1}).encode()
        head = (
            b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        )
        routes = (b"/tokenize", b"/v1/completions")
        asked = [self._status(head % (route, len(body)) + body) for route in routes * 12]
        await asyncio.gather(*asked, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        target = self._machine.target
        return await asyncio.open_connection(target.host, target.port)


async def _read_status(reader: asyncio.StreamReader) -> int:
    line = await reader.readline()
    fields = line.split(None, 2)
    if len(fields) < 2 or not fields[1].isdigit():
        raise EOFError("the connection was closed without an answer")
    return int(fields[1])


def _post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    return head % len(data) + data


def hostile_requests(rng: random.Random) -> Any:
    """The endless sequence for `send_hostile`."""
    return hostile.requests(rng)
