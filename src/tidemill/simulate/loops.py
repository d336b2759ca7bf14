"""Closed and open loops in simulated time: `bench.loops` without sockets.

The functions are coroutines, since those who measure points await them; none of them ever waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from tidemill.bench.loops import ERROR_PAUSE, Measured, Tick
from tidemill.bench.results import ClientUse, RequestTrace
from tidemill.bench.workload import Session
from tidemill.simulate.prompts import Prompts
from tidemill.simulate.server import Call
from tidemill.simulate.timeline import Timeline

T = TypeVar("T")


def at_once(main: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        main.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    main.close()
    raise RuntimeError("a coroutine of a simulation waits")


class Sends(Protocol):
    """What answers calls: a server or a fleet of them."""

    def send(self, call: Call) -> None:
        """A client sends a request now."""

    def cancel(self, call: Call) -> None:
        """The client gives up."""


@dataclass(slots=True, eq=False)
class _Stream:
    """A session under way."""

    session: Session
    turn: int
    ids: tuple[int, ...]
    due: float  # relative to the point's start
    ended: Callable[[], None]


class SimulatedLoops:
    """See `bench.points.LoadLoops`.

    Args:
        timeline: the time.
        server: answers.
        prompts: makes token ids.
        think: seconds between an answer and the next turn.
        timeout: seconds one request may take.
        max_seconds: seconds from a point's start in which every request must have ended.
        max_concurrency: open loop: requests in flight at most.
    """

    def __init__(
        self,
        timeline: Timeline,
        server: Sends,
        prompts: Prompts,
        *,
        think: float = 0.0,
        timeout: float = 600.0,
        max_seconds: float = 1800.0,
        max_concurrency: int | None = None,
    ) -> None:
        self._timeline = timeline
        self._server = server
        self._prompts = prompts
        self._think = think
        self._timeout = timeout
        self._max_seconds = max_seconds
        self._max_concurrency = max_concurrency

    async def closed(
        self, sessions: Iterator[Session], streams: int, until: float, tick: Tick
    ) -> Measured:
        """Keep so many sessions running; none begins after `until` seconds."""
        point = _Point(self._timeline, self, until, tick)

        def begin() -> None:
            session = None if point.time >= until else next(sessions, None)
            if session is None:
                point.streams -= 1
            else:
                point.begin(session, point.time, ended)

        def ended() -> None:
            if point.failed:
                self._timeline.at(self._timeline.now + ERROR_PAUSE, begin)
            else:
                begin()

        point.streams = streams
        for _ in range(streams):
            begin()
        self._timeline.run(lambda: point.streams > 0)
        return point.done()

    async def open(self, sessions: Iterator[Session], until: float, tick: Tick) -> Measured:
        """Begin each session when it is due, whatever became of those before."""
        point = _Point(self._timeline, self, until, tick, self._max_concurrency)
        point.streams = 1  # the arrivals

        def ended() -> None:
            point.streams -= 1

        def arrive(session: Session) -> None:
            if not point.measured.stopped:
                point.streams += 1
                point.begin(session, session.due, ended)
            await_next()

        def await_next() -> None:
            session = next(sessions, None)
            if session is None or session.due > until or point.measured.stopped:
                point.streams -= 1
            else:
                self._timeline.at(point.zero + session.due, partial(arrive, session))

        await_next()
        self._timeline.run(lambda: point.streams > 0 and not point.measured.stopped)
        point.abandon()
        return point.done()

    # -- of a point --------------------------------------------------------------------------

    @property
    def server(self) -> Sends:
        """Who answers."""
        return self._server

    def ids(self, before: tuple[int, ...], stream: _Stream) -> tuple[int, ...]:
        """The prompt of a stream's turn after what was said before."""
        return before + self._prompts.ids(stream.session.turns[stream.turn].segments)

    @property
    def think(self) -> float:
        """Seconds between an answer and the next turn."""
        return self._think

    def deadline(self, zero: float, sent: float) -> tuple[float, str]:
        """When a request that is sent now must have ended, and what it is called if it has not."""
        by_request, by_point = sent + self._timeout, zero + self._max_seconds
        if by_request <= by_point:
            return by_request, "timeout"
        return by_point, "end of the point's time"


class _Point:
    """One measurement."""

    def __init__(
        self,
        timeline: Timeline,
        loops: SimulatedLoops,
        until: float,
        tick: Tick,
        most: int | None = None,
    ) -> None:
        self.zero = timeline.now
        self.measured = Measured()
        self.streams = 0
        self.failed = False  # what has ended last
        self._timeline = timeline
        self._loops = loops
        self._until = until
        self._tick = tick
        self._most = most
        self._waiting: deque[Callable[[], None]] = deque()
        self._calls: dict[Call, None] = {}
        self._deadlines: deque[tuple[float, str, Call]] = deque()
        self._watched = False

    @property
    def time(self) -> float:
        """Seconds from the start."""
        return self._timeline.now - self.zero

    def begin(self, session: Session, due: float, ended: Callable[[], None]) -> None:
        """Begin a session that was due at a time from the start."""
        self._send_when_free(_Stream(session, 0, (), due, ended))

    def _send_when_free(self, stream: _Stream) -> None:
        if self._most is None or len(self._calls) < self._most:
            self._send(stream)
        else:
            self._waiting.append(partial(self._send, stream))

    def _send(self, stream: _Stream) -> None:
        turn = stream.session.turns[stream.turn]
        prompt = self._loops.ids(stream.ids, stream)
        trace = RequestTrace(start=stream.due, sent=self.time, input_tokens=len(prompt))
        several = len(stream.session.turns) > 1
        call = Call(prompt, turn.output_tokens, trace, self.zero, lambda: self._ended(stream, call))
        call.answer = [] if several else None
        call.model = stream.session.model
        self._calls[call] = None
        self._deadlines.append((*self._loops.deadline(self.zero, self._timeline.now), call))
        self._watch()
        self._loops.server.send(call)

    def _ended(self, stream: _Stream, call: Call) -> None:
        del self._calls[call]
        trace, measured = call.trace, self.measured
        measured.traces.append(trace)
        self.failed = trace.error is not None
        measured.stopped = self._tick(trace) or measured.stopped
        if self._waiting:
            self._waiting.popleft()()
        stream.turn += 1
        due = trace.end + self._loops.think
        last = stream.turn >= len(stream.session.turns)
        if last or trace.error is not None or due >= self._until:
            stream.ended()
            return
        stream.ids = (*call.prompt, *(call.answer or ()))
        stream.due = due
        self._timeline.at(self.zero + due, partial(self._send_when_free, stream))

    def _watch(self) -> None:
        """Deadlines come in the order in which they were set."""
        while self._deadlines and self._deadlines[0][2].ended:
            self._deadlines.popleft()
        if self._deadlines and not self._watched:
            self._watched = True
            self._timeline.at(self._deadlines[0][0], self._expire)

    def _expire(self) -> None:
        self._watched = False
        while self._deadlines and self._deadlines[0][0] <= self._timeline.now:
            _, why, call = self._deadlines.popleft()
            if not call.ended:
                self._give_up(call, why)
        self._watch()

    def _give_up(self, call: Call, why: str) -> None:
        self._loops.server.cancel(call)
        call.trace.error, call.trace.end, call.ended = why, self.time, True
        call.on_end()

    def abandon(self) -> None:
        """The point has been stopped: what is still in flight does not count."""
        for call in list(self._calls):
            call.ended = True
            self._loops.server.cancel(call)

    def done(self) -> Measured:
        """What was measured."""
        rate = len(self.measured.traces) / max(self.time, 1e-9)
        self.measured.client = ClientUse(sent_rate=rate)
        return self.measured
