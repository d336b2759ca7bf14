"""`run_bench`: every point of the options, measured."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from tidemill.base.clock import monotonic
from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.bench.client import Client, Clock, Connect, HttpFailure, Target
from tidemill.bench.dialects import DIALECTS, Sampling
from tidemill.bench.energy import EnergyMeter, cost
from tidemill.bench.loops import POLL, Loops, Measured, Tick
from tidemill.bench.options import BenchOptions
from tidemill.bench.quality import exact_match, perplexity, read_questions
from tidemill.bench.results import BenchReport, PointReport, RequestTrace
from tidemill.bench.search import find_goodput, sweep_concurrency, sweep_rate
from tidemill.bench.send import Sender
from tidemill.bench.steady import steady_part
from tidemill.bench.summary import meets, merge, summarize
from tidemill.bench.workload import Workload

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


def target_of(options: BenchOptions) -> Target:
    """Where the endpoint's requests go. Raises ValueError for what is no URL."""
    dialect = DIALECTS[options.endpoint]
    target = Target.parse(options.base_url, None)
    keys = [h.format(options.api_key) for h in dialect.key_headers] if options.api_key else []
    return replace(target, path=dialect.path(target.path)).with_headers(*keys, *options.headers)


class _Run:
    """A run: its server, its workload, and the points so far."""

    def __init__(
        self, options: BenchOptions, client: Client, model: str, progress: Progress, clock: Clock,
        poll: float,
    ) -> None:  # fmt: skip
        self._options = options
        self._progress = progress
        self._workload = Workload(options)
        dialect = DIALECTS[options.endpoint]
        ignore_eos = options.ignore_eos and options.endpoint in ("completions", "chat")
        sampling = Sampling(model, options.temperature, ignore_eos, options.extra)
        self._sender = Sender(
            client, dialect, sampling, clock, options.timeout, options.max_seconds
        )
        self._loops = Loops(
            self._sender, self._workload.conversation, options.think, options.max_concurrency, poll
        )
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
        meter = EnergyMeter(self._sender.client.target.host)
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

    async def quality(self) -> dict[str, Any] | None:
        """Measure the quality that the options ask for."""
        options, found = self._options, {}
        if options.answers is not None:
            found["answers"] = await exact_match(
                self._sender, options.answers, options.match, options.answer_tokens,
                max(options.concurrency),
            )  # fmt: skip
        if options.perplexity is not None:
            found["perplexity"] = await perplexity(self._sender, options.perplexity)
        return found or None

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


def _workload_facts(options: BenchOptions) -> dict[str, Any]:
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


async def measure_server(
    options: BenchOptions,
    progress: Progress = lambda *_: None,
    *,
    clock: Clock = monotonic,
    connect: Connect | None = None,
    poll: float = POLL,
) -> BenchReport:
    """Run every point of `options` in the running event loop; see `run_bench`.

    Args:
        clock, connect, poll: of the client, for tests in simulated time.

    Raises:
        OSError, HttpFailure, ValueError: when the server cannot be used.
    """
    client = Client(target_of(options), clock=clock, connect=connect)
    model = options.model
    if model is None:
        model = await DIALECTS[options.endpoint].first_model(client)
    if model is None:
        raise config_error("model", "the server lists no model; set one with --model")
    run = _Run(options, client, model, progress, clock, poll)
    try:
        search = await run.all_points()
        quality = await run.quality()
    finally:
        client.close()
    lengths = str(options.lengths_file or options.trace or "")
    return BenchReport(
        base_url=options.base_url,
        model=model,
        endpoint=options.endpoint,
        input_tokens=lengths or str(options.input_tokens),
        output_tokens=lengths or str(options.output_tokens),
        points=run.points,
        label=options.label or model,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=_workload_facts(options),
        objectives=dict(options.objectives),
        search=search,
        quality=quality,
        notes=run.notes(),
    )


def run_bench(options: BenchOptions, progress: Progress = lambda *_: None) -> BenchReport:
    """Run every point of `options` and report.

    Args:
        options: see `BenchOptions`.
        progress: called with (label of the point, finished requests, total requests).

    Raises:
        TidemillError: CONFIG for invalid options, UNAVAILABLE when the server cannot be reached.
            Failures of single requests are counted in the report.
    """
    options.validate()
    if options.answers is not None:
        read_questions(options.answers)
    try:
        return _in_loop(measure_server(options, progress))
    except (OSError, HttpFailure, ValueError) as error:
        raise TidemillError(
            ErrorKind.UNAVAILABLE,
            f"cannot use the server at {options.base_url}: {error}. Is it running, and does it "
            f"speak the endpoint {options.endpoint}?",
            param="base_url",
        ) from error


def _in_loop(main: Coroutine[Any, Any, BenchReport]) -> BenchReport:
    """`asyncio.run`, on uvloop where it is installed: it costs the client half the time."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
