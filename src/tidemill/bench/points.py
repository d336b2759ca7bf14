"""Every point of the options, measured by whatever sends the load."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from tidemill.bench.energy import cost
from tidemill.bench.loops import Measured, Tick
from tidemill.bench.options import BenchOptions
from tidemill.bench.results import PointReport, RequestTrace
from tidemill.bench.search import find_goodput, sweep_concurrency, sweep_rate
from tidemill.bench.steady import steady_part
from tidemill.bench.summary import meets, merge, summarize
from tidemill.bench.workload import Session, Workload

# Called with (label of the point, finished requests, total requests; 0: unknown).
Progress = Callable[[str, int, int], None]

_SWEEP_STREAMS = 32
_PROBE_REQUESTS = 100  # of a goodput search: fewer cannot tell 99 % from 100 %
_PROBE_SECONDS = 10.0
_ALONE_REQUESTS = 10  # of one stream, before the search

_LABELS = {
    "concurrency": "concurrency {:g}", "rate": "{:.3g} req/s", "ramp": "ramp to {:g} req/s",
    "trace": "trace at speed {:g}",
}  # fmt: skip


class LoadLoops(Protocol):
    """What sends sessions; see `loops.Loops`."""

    async def closed(
        self, sessions: Iterator[Session], streams: int, until: float, tick: Tick
    ) -> Measured:
        """Keep so many sessions running; none begins after `until` seconds."""

    async def open(self, sessions: Iterator[Session], until: float, tick: Tick) -> Measured:
        """Begin each session when it is due, whatever became of those before."""


class Meter(Protocol):
    """Measures energy from when it is made."""

    def read(self) -> dict[str, float]:
        """Joules by source."""


class Run:
    """A run: its loops, its workload, and the points so far.

    Args:
        options: what is measured.
        workload: of the same options.
        loops: send it.
        progress: see `Progress`.
        meter: makes a meter of energy for one measurement.
    """

    def __init__(
        self,
        options: BenchOptions,
        workload: Workload,
        loops: LoadLoops,
        progress: Progress,
        meter: Callable[[], Meter],
    ) -> None:
        self._options = options
        self._progress = progress
        self._workload = workload
        self._loops = loops
        self._meter = meter
        self.points: list[PointReport] = []
        self._finished: Counter[str] = Counter()  # requests by the point's label
        self._unsent = 0  # requests of a trace that were due after the point's time

    async def _warm_up(self) -> None:
        sessions = self._workload.closed(self._options.warmup)
        await self._loops.closed(sessions, 1, self._options.max_seconds, lambda _: False)

    async def _load(self, mode: str, value: float, count: int | None, tick: Tick) -> Measured:
        options, workload = self._options, self._workload
        until = min(options.duration or options.max_seconds, options.max_seconds)
        if mode == "concurrency":
            streams = int(value) if count is None else min(int(value), count)
            return await self._loops.closed(workload.closed(count), streams, until, tick)
        if mode == "trace":
            return await self._loops.open(workload.replay(value), until, tick)
        sessions = workload.ramp() if mode == "ramp" else workload.open(value, count)
        return await self._loops.open(sessions, until, tick)

    def _count(self, mode: str, value: float) -> int | None:
        options = self._options
        if mode == "trace":
            return min(len(self._workload.trace), options.requests or len(self._workload.trace))
        if mode == "ramp":
            return None
        if mode == "concurrency" and options.goodput:
            return _ALONE_REQUESTS
        if options.goodput and options.requests is None and options.duration is None:
            return max(_PROBE_REQUESTS, int(_PROBE_SECONDS * value))
        return options.requests_for(value)

    def _allowed_misses(self, count: int | None) -> float:
        """Requests that may miss the objectives before a probe of a search has failed."""
        options = self._options
        if not options.goodput or count is None:
            return math.inf
        return math.floor((1 - options.target) * count + 1e-9)

    def _ticker(self, mode: str, value: float, count: int | None) -> Tick:
        """Counts the requests of one measurement for the progress, and ends a failed probe."""
        options = self._options
        label, total = _LABELS[mode].format(value), (count or 0) * options.repeat
        allowed = self._allowed_misses(count if mode == "rate" else None)
        misses = 0

        def tick(trace: RequestTrace) -> bool:
            nonlocal misses
            self._finished[label] += 1
            misses += math.isfinite(allowed) and not meets(trace, options.objectives)
            self._progress(label, self._finished[label], total)
            return misses > allowed

        self._progress(label, self._finished[label], total)
        return tick

    async def in_turns(self, mode: str, values: Sequence[float]) -> list[PointReport]:
        """Measure points as often as the options say, all of them before the next repetition:
        what changes on the machine meanwhile is then noise between repetitions."""
        measured: list[list[tuple[PointReport, list[RequestTrace]]]] = [[] for _ in values]
        for repetition in range(self._options.repeat):
            for place, value in enumerate(values):
                measured[place].append(await self._repetition(mode, value, repetition))
        found = []
        for rows in measured:
            points, traces = zip(*rows, strict=True)
            merged = merge(points, traces)
            merged.cost = cost(merged, self._options.prices)
            found.append(merged)
        self.points += found
        return found

    async def point(self, mode: str, value: float) -> PointReport:
        """Measure one concurrency, rate, ramp or trace."""
        return (await self.in_turns(mode, [value]))[0]

    async def _repetition(
        self, mode: str, value: float, repetition: int
    ) -> tuple[PointReport, list[RequestTrace]]:
        """One measurement of a point, and the traces that it counts."""
        options = self._options
        count = self._count(mode, value)
        tick = self._ticker(mode, value, count)
        await self._warm_up()
        meter = self._meter()
        measured = await self._load(mode, value, count, tick)
        energy = meter.read()
        traces, client = measured.traces, measured.client
        point = summarize(mode, value, traces, options.objectives, client, repetition=repetition)
        if options.steady_only:
            traces, steady = steady_part(traces, point.steady), point.steady
            point = summarize(mode, value, traces, options.objectives, client, steady, repetition)
        point.energy = energy
        if mode == "trace" and count is not None and count > len(measured.traces):
            self._unsent += count - len(measured.traces)
        return point, traces

    async def all_points(self) -> dict[str, Any] | None:
        """Measure what the options ask for; returns the result of a goodput search."""
        options = self._options

        async def rate(value: float) -> PointReport:
            return await self.point("rate", value)

        async def streams(value: float) -> PointReport:
            return await self.point("concurrency", value)

        if options.goodput:
            # Without a first rate: what one stream reaches, which a server surely serves.
            first = options.rates[0] if options.rates else await self._alone() or 1.0
            return await find_goodput(rate, options.target, options.precision, first)
        if options.sweep == "concurrency":
            await sweep_concurrency(streams)
        elif options.sweep == "rate":
            await sweep_rate(streams, rate, _SWEEP_STREAMS)
        elif options.trace is not None:
            await self.in_turns("trace", options.speeds)
        elif options.ramp is not None:
            await self.point("ramp", options.ramp[1])
        else:
            mode = "rate" if options.rates else "concurrency"
            await self.in_turns(mode, options.rates or options.concurrency)
        return None

    async def _alone(self) -> float:
        """Requests per second of one stream."""
        return (await self.point("concurrency", 1)).request_throughput

    def notes(self) -> list[str]:
        """What a reader must know."""
        found = []
        if any(p.client.saturated for p in self.points):
            found.append(
                "The client was saturated or held up at some points: what it measured there is "
                "partly itself. Use a quiet machine, less load, or several clients."
            )
        if self._workload.clipped:
            found.append(f"{self._workload.clipped} requests had their lengths cut.")
        if self._unsent:
            found.append(
                f"{self._unsent} requests of the trace were due after --duration or --max-seconds "
                "and were not sent."
            )
        if self._options.max_concurrency is not None:
            found.append("Latencies include the wait for --max-concurrency.")
        return found


_SECRET = ("api_key", "headers", "base_url", "model", "endpoint", "label", "objectives", "extra")


def workload_facts(options: BenchOptions) -> dict[str, Any]:
    """The options that differ from their defaults, without those that hold secrets."""
    plain = BenchOptions(options.base_url)
    found: dict[str, Any] = {}
    for name, value in asdict(options).items():
        if name not in _SECRET and value != getattr(plain, name):
            found[name] = list(value) if isinstance(value, tuple) else value
    for name in ("trace", "lengths_file", "answers", "perplexity"):
        if (path := getattr(options, name)) is not None:
            found[name] = path.name
    return found
