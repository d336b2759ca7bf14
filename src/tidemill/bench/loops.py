"""Closed and open loops: when requests are sent, and what the client itself does meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from tidemill.bench.client import Clock
from tidemill.bench.results import ClientUse, RequestTrace
from tidemill.bench.send import Sender
from tidemill.bench.stats import percentile
from tidemill.bench.workload import Conversation, Session

_HEARTBEAT = 0.05
# The event loop's timers are late by up to a millisecond; so long before a due time it polls.
POLL = 0.001

# Called with each request that has ended; True ends an open loop.
Tick = Callable[[RequestTrace], bool]
_POLL_STOP = 0.2
_NO_LIMIT = nullcontext()
# A closed loop's stream waits so long after a failure: a server that is gone would fail at once,
# a hundred thousand times.
ERROR_PAUSE = 0.1


@dataclass(slots=True)
class Measured:
    """Traces of a point, what the client did, and whether `Tick` ended it early."""

    traces: list[RequestTrace] = field(default_factory=list)
    client: ClientUse = field(default_factory=ClientUse)
    stopped: bool = False


class _Watch:
    """Measures the client: its processor time, and how late it does what is due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock()
        self._cpu = time.process_time()
        self.lags: list[float] = []
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            due = self._clock() + _HEARTBEAT
            await asyncio.sleep(_HEARTBEAT)
            self.lags.append(self._clock() - due)

    def end(self, sent: int) -> ClientUse:
        """Stop, and say what was measured."""
        self._task.cancel()
        seconds = max(1e-9, self._clock() - self._began)
        lags = sorted(1000 * max(0.0, lag) for lag in self.lags)
        lag = {"p50": percentile(lags, 50), "p99": percentile(lags, 99)} if lags else {}
        if lags:
            lag["max"] = lags[-1]
        cpu = (time.process_time() - self._cpu) / seconds
        return ClientUse(cpu=cpu, lag=lag, sent_rate=sent / seconds)


@dataclass(frozen=True, slots=True)
class Loops:
    """Runs sessions against a server.

    Attributes:
        sender: sends them.
        conversation: makes an empty conversation.
        think: seconds between an answer and the next turn.
        max_concurrency: open loop: requests in flight at most.
        poll: seconds before a due time in which the loop polls.
    """

    sender: Sender
    conversation: Callable[[], Conversation]
    think: float = 0.0
    max_concurrency: int | None = None
    poll: float = POLL

    async def closed(
        self, sessions: Iterator[Session], streams: int, until: float, tick: Tick
    ) -> Measured:
        """Keep so many sessions running; none begins after `until` seconds."""
        clock = self.sender.clock
        zero, measured = clock(), Measured()
        watch = _Watch(clock)

        async def stream() -> None:
            for session in sessions:
                if clock() - zero >= until:
                    return
                await self._session(session, clock() - zero, zero, until, measured, tick)
                if measured.traces[-1].error is not None:
                    await asyncio.sleep(ERROR_PAUSE)

        await asyncio.gather(*(stream() for _ in range(streams)))
        measured.client = watch.end(len(measured.traces))
        return measured

    async def open(self, sessions: Iterator[Session], until: float, tick: Tick) -> Measured:
        """Begin each session when it is due, whatever became of those before."""
        clock = self.sender.clock
        zero, measured = clock(), Measured()
        watch = _Watch(clock)
        tasks: set[asyncio.Task[None]] = set()
        most = self.max_concurrency
        limit = asyncio.Semaphore(most) if most else _NO_LIMIT
        for session in sessions:
            if session.due > until or measured.stopped:
                break
            while (left := zero + session.due - clock()) > 0:
                await asyncio.sleep(left - self.poll if left > self.poll else 0)
            watch.lags.append(-left)
            # Latency counts from the due time, so that a late sender cannot hide queueing.
            task = asyncio.create_task(
                self._session(session, session.due, zero, until, measured, tick, limit)
            )
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        sent = clock() - zero
        while tasks:
            if measured.stopped:
                for task in tasks:
                    task.cancel()
            await asyncio.wait(set(tasks), timeout=_POLL_STOP)
        measured.client = watch.end(len(measured.traces))
        measured.client.sent_rate = len(measured.traces) / max(sent, 1e-9)
        return measured

    async def _session(
        self, session: Session, due: float, zero: float, until: float, measured: Measured,
        tick: Tick, limit: AbstractAsyncContextManager[None] = _NO_LIMIT,
    ) -> None:  # fmt: skip
        conversation = self.conversation()
        several = len(session.turns) > 1
        for number, turn in enumerate(session.turns):
            if number:
                await asyncio.sleep(zero + due - self.sender.clock())
            if number and due >= until:
                return
            prompt = conversation.prompt(turn)
            async with limit:
                trace = await self.sender.send(
                    prompt, turn.input_tokens, due, zero, several, session.model
                )
            measured.traces.append(trace)
            due = trace.end + self.think
            measured.stopped = tick(trace) or measured.stopped
            if trace.error is not None:
                return
            if several:
                conversation.answered(trace.text)
                trace.text = ""
