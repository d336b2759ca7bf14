"""Results of a run; `docs/benchmarking.md` documents their JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = "tidemill.bench/1"


@dataclass(slots=True)
class RequestTrace:
    """One request as the client saw it; seconds relative to the point's start.

    Attributes:
        start: the intended send time: open loop: when it was due; closed loop: when its stream was
            free for it. Latencies count from here.
        sent: when it was sent.
        arrivals: arrival times of the chunks with content.
        end: when the stream ended.
        input_tokens, output_tokens: from the server's usage, else the requested input length
            and the number of chunks.
        cached_tokens: prompt tokens the server found in its prefix cache, by its usage.
        finish_reason: as reported.
        error: kind of failure, or None.
        detail: message of the failure.
        text: the answer, where the next turn needs it.
    """

    start: float
    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    end: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None
    detail: str = ""
    text: str = ""

    def latencies(self) -> dict[str, float]:
        """Seconds by name (ttft, tpot, e2e) as far as they exist. TPOT is (last - first) /
        (tokens - 1)."""
        if self.error is not None:
            return {}
        found = {"e2e": self.end - self.start}
        if self.arrivals:
            found["ttft"] = self.arrivals[0] - self.start
            if self.output_tokens > 1:
                decode = self.arrivals[-1] - self.arrivals[0]
                found["tpot"] = decode / (self.output_tokens - 1)
        return found


@dataclass(slots=True)
class ClientUse:
    """What the client itself did in a point.

    Attributes:
        cpu: processor time of this process per second.
        lag: milliseconds between intended and real send (open loop) or wake-up (closed loop):
            ``{"p50", "p99", "max"}``.
        saturated: whether the client limited what was measured.
        sent_rate: requests per second that were sent.
    """

    cpu: float = 0.0
    lag: dict[str, float] = field(default_factory=dict)
    saturated: bool = False
    sent_rate: float = 0.0


@dataclass(slots=True)
class PointReport:
    """One measurement: a concurrency (closed loop) or a rate (open loop).

    Latencies are milliseconds: {"ttft": {"mean", "p50", "p90", "p95", "p99", "max"}, "itl", "tpot",
    "e2e"}. Throughputs are per second of wall time from the first send to the last end. `errors`
    counts failed requests by kind; `error_details` has the message of the first of each kind.

    Attributes:
        mode: ``concurrency``, ``rate``, ``ramp`` (value: its end) or ``trace`` (value: its speed).
        attainment: share of the requests that met the objectives, errors as misses; None without.
        goodput: requests per second that met them.
        steady: see `steady.steady_state`.
        intervals: metric -> [low, high]: 95 % confidence; `interval_method` says from what.
        repetitions: the metrics of each repetition, where there are several.
        client: what the client itself did.
        energy: joules by source, measured; empty where nothing can be read.
        samples: a column per field, a row per request.
        series: counts per `step` seconds from the start: output_tokens, completed, active.
    """

    mode: str
    value: float
    requests: int
    completed: int
    seconds: float
    output_tokens: int
    input_tokens: int
    cached_tokens: int
    output_throughput: float
    total_throughput: float
    request_throughput: float
    latencies: dict[str, dict[str, float]]
    errors: dict[str, int]
    error_details: dict[str, str] = field(default_factory=dict)
    attainment: float | None = None
    goodput: float | None = None
    steady: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, list[float]] = field(default_factory=dict)
    interval_method: str = ""
    repetitions: list[dict[str, float]] = field(default_factory=list)
    client: ClientUse = field(default_factory=ClientUse)
    energy: dict[str, float] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[Any]] = field(default_factory=dict)
    series: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class BenchReport:
    """All points of a run, with its settings.

    Attributes:
        label: how people call the run; in plots and comparisons.
        created: UTC, ISO 8601.
        tool: what measured it: name and version.
        workload: the options that shaped the load.
        objectives: milliseconds by latency.
        search: the goodput search: see `goodput.search`.
        quality: see `quality`.
        notes: what a reader must know, as sentences.
    """

    base_url: str
    model: str
    endpoint: str
    input_tokens: str
    output_tokens: str
    points: list[PointReport]
    schema: str = SCHEMA
    label: str = ""
    created: str = ""
    tool: str = "tidemill"
    workload: dict[str, Any] = field(default_factory=dict)
    objectives: dict[str, float] = field(default_factory=dict)
    search: dict[str, Any] | None = None
    quality: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
