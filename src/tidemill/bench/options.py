"""Settings of a benchmark run, and its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidemill.base.errors import config_error


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """A load for an OpenAI-compatible server.

    Attributes:
        base_url: for example ``http://127.0.0.1:8000/v1``.
        model: model name; None takes the first that the server lists.
        api_key: bearer token, if the server requires one.
        endpoint: ``completions`` or ``chat``.
        concurrency: closed loop: one measurement per number of parallel streams.
        rates: open loop: one measurement per Poisson arrival rate (requests per second); when
            given, `concurrency` is not used.
        requests: measured requests per point; None is 4 per stream, at least 16.
        warmup: unmeasured requests before each point.
        input_tokens, output_tokens: lengths of every request.
        lengths_file: JSONL (``{"input": 200, "output": 64}`` or ``[200, 64]``) or CSV of pairs; its
            rows are used cyclically instead of the fixed lengths.
        token_ids: send prompts as token ids (exact lengths; the server must accept them) instead of
            words; `completions` only.
        vocab: ids are drawn from [0, vocab) when token_ids is set.
        ignore_eos: generation continues after the end token, so that lengths are exact.
        temperature: 0 is greedy.
        shared_prefix: length of the prefix that all prompts share, in tokens.
        seed: of prompts and arrivals.
        timeout: seconds one request may take.
        max_seconds: seconds one point may take; unfinished requests then count as errors.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = None
    endpoint: str = "completions"
    concurrency: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()
    requests: int | None = None
    warmup: int = 1
    input_tokens: int = 200
    output_tokens: int = 64
    lengths_file: Path | None = None
    token_ids: bool = False
    vocab: int = 1000
    ignore_eos: bool = True
    temperature: float = 0.0
    shared_prefix: int = 0
    seed: int = 0
    timeout: float = 600.0
    max_seconds: float = 1800.0

    def validate(self) -> BenchOptions:
        """Return self if the options make sense together.

        Raises:
            TidemillError: kind CONFIG, `param` naming the option.
        """
        if self.endpoint not in ("completions", "chat"):
            raise config_error(
                "endpoint", f"endpoint must be completions or chat, got {self.endpoint!r}"
            )
        if self.token_ids and self.endpoint == "chat":
            raise config_error("token_ids", "token ids need the completions endpoint")
        if not self.rates and not self.concurrency:
            raise config_error("concurrency", "give at least one concurrency or rate")
        if any(c < 1 for c in self.concurrency):
            raise config_error("concurrency", "every concurrency must be at least 1")
        if any(not r > 0 for r in self.rates):
            raise config_error("rates", "every rate must be above 0 requests per second")
        for name in ("input_tokens", "output_tokens", "vocab"):
            if getattr(self, name) < 1:
                raise config_error(name, f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "shared_prefix"):
            if getattr(self, name) < 0:
                raise config_error(name, f"{name} must not be negative")
        if self.requests is not None and self.requests < 1:
            raise config_error("requests", f"requests must be at least 1, got {self.requests}")
        return self

    def requests_for(self, point: float) -> int:
        """Measured requests at one concurrency or rate."""
        return self.requests if self.requests is not None else max(16, int(4 * point))


@dataclass(slots=True)
class RequestTrace:
    """One request as the client saw it; seconds relative to the point's start.

    Attributes:
        start: when it was sent (open loop: when it was due).
        arrivals: arrival times of the chunks with content.
        end: when the stream ended.
        input_tokens, output_tokens: from the server's usage, else the requested input length
            and the number of chunks.
        cached_tokens: prompt tokens the server found in its prefix cache, by its usage.
        finish_reason: as reported.
        error: kind of failure, or None.
        detail: message of the failure.
    """

    start: float
    arrivals: list[float] = field(default_factory=list)
    end: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None
    detail: str = ""


@dataclass(slots=True)
class PointReport:
    """One measurement: a concurrency (closed loop) or a rate (open loop).

    Latencies are milliseconds: {"ttft": {"mean", "p50", "p90", "p95", "p99", "max"}, "itl", "tpot",
    "e2e"}. Throughputs are per second of wall time from the first send to the last end. `errors`
    counts failed requests by kind; `error_details` has the message of the first of each kind.
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


@dataclass(slots=True)
class BenchReport:
    """All points of a run, with its settings."""

    base_url: str
    model: str
    endpoint: str
    input_tokens: str
    output_tokens: str
    points: list[PointReport]
