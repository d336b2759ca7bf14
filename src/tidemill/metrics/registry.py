"""The server's metrics in Prometheus form: what requests saw, and what the engine counted.

Request-side figures (TTFT, ITL, TPOT, end to end) are observed in the API process, where the client
sees them. Engine-side figures arrive as `EngineStats` snapshots; their counters are absolute, so
they are exported as they are instead of being counted again. Names follow Prometheus' conventions:
base units in the name, `_total` on counters.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidemill.base.clock import monotonic
from tidemill.contract.wire import EngineStats
from tidemill.metrics.speculation import speculation_metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0),
)
_MODEL = ("model",)
_NO_STATS = EngineStats()
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)

# EngineStats field -> (metric name without prefix, help). Counters are absolute since engine start.
_ENGINE_GAUGES = {
    "queued": ("queue_sequences", "Sequences waiting for their first or next step"),
    "running": ("running_sequences", "Sequences that hold KV blocks"),
    "blocks_used": ("kv_blocks_used", "KV blocks held by sequences"),
    "blocks_total": ("kv_blocks", "KV blocks there are"),
    "last_step_rows": ("step_rows_last", "Rows of the latest step (its batch size)"),
    "last_step_tokens": ("step_tokens_last", "Tokens of the latest step"),
    "last_step_seconds": ("step_seconds_last", "Wall time of the latest step"),
    "last_predicted_seconds": ("step_predicted_seconds_last", "What it was predicted to compute"),
    "waiting_tokens": ("engine_queue_tokens", "Known tokens of sequences that wait in the engine"),
    "tenants": ("tenants", "Tenants with a request in the engine"),
    "loading": ("loading", "1 while weights are being packed, which steps then wait for"),
}
_ENGINE_COUNTERS = {
    "steps": ("steps", "Steps run"),
    "step_rows": ("step_rows", "Rows over all steps; divided by steps: the mean batch size"),
    "step_tokens": ("step_tokens", "Tokens computed over all steps"),
    "step_seconds": ("step_seconds", "Wall time of all steps"),
    "compute_seconds": ("compute_seconds", "Time of all steps inside the backend"),
    "prompt_tokens": ("engine_prompt_tokens", "Prompt tokens of admitted sequences"),
    "cached_tokens": ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache"),
    "generated_tokens": ("engine_generated_tokens", "Tokens sampled"),
    "preemptions": ("preemptions", "Sequences preempted for lack of KV blocks"),
    "forced_tokens": ("forced_tokens", "Tokens a constraint forced, appended without sampling"),
    "drafted_tokens": ("drafted_tokens", "Draft tokens verified by speculation"),
    "drafts_accepted": ("drafts_accepted", "Draft tokens that became tokens of an answer"),
    "grammars_compiled": ("grammars_compiled", "Languages compiled for constrained output"),
    "grammars_reused": ("grammars_reused", "Languages found compiled"),
    "grammars_refused": ("grammars_refused", "Languages that cannot be honoured"),
    "grammar_seconds": ("grammar_seconds", "Seconds spent compiling languages"),
    "mask_seconds": ("mask_seconds", "Seconds spent on token masks"),
    "expired": ("deadlines_expired", "Requests ended by their own deadline"),
    "queue_expired": ("queue_time_expired", "Requests ended by --max-queue-time"),
    "predicted_seconds": ("step_predicted_seconds", "Predicted compute time of steps"),
    "measured_seconds": ("step_predicted_measured_seconds", "What those steps took"),
}


class _EngineCollector:
    """Exports the latest `EngineStats` of every model whenever the registry is scraped."""

    def __init__(self) -> None:
        self.stats: dict[str, EngineStats] = {}

    def collect(self) -> Iterator[Metric]:
        for field, (name, text) in _ENGINE_GAUGES.items():
            gauge = GaugeMetricFamily(f"tidemill_{name}", text, labels=_MODEL)
            for model, stats in self.stats.items():
                gauge.add_metric((model,), getattr(stats, field))
            yield gauge
        usage = GaugeMetricFamily(
            "tidemill_kv_usage_ratio", "Share of KV blocks held", labels=_MODEL
        )
        for model, stats in self.stats.items():
            total = stats.blocks_total
            usage.add_metric((model,), stats.blocks_used / total if total else 0.0)
        yield usage
        for field, (name, text) in _ENGINE_COUNTERS.items():
            counter = CounterMetricFamily(f"tidemill_{name}", text, labels=_MODEL)
            for model, stats in self.stats.items():
                counter.add_metric((model,), getattr(stats, field))
            yield counter
        yield from speculation_metrics(self.stats)


class RequestObserver:
    """Times one request for the histograms; made by `ModelMetrics.start`.

    `tokens` is called with each batch of tokens of one choice, `finish` exactly once.
    """

    __slots__ = ("_first", "_generated", "_last", "_metrics", "_start")

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._start = monotonic()
        self._first: float | None = None
        self._last: dict[int, float] = {}
        self._generated = 0

    def tokens(self, choice: int, count: int) -> None:
        """`count` tokens of a choice reached the client now."""
        if count <= 0:
            return
        now = monotonic()
        metrics = self._metrics
        if self._first is None:
            self._first = now
            metrics.ttft.observe(now - self._start)
        previous = self._last.get(choice)
        if previous is not None:
            # Tokens that arrive together share the gap, so the histogram's sum stays wall time.
            for _ in range(count):
                metrics.itl.observe((now - previous) / count)
        self._last[choice] = now
        self._generated += count
        metrics.generation_tokens.inc(count)

    def finish(self, reason: str, prompt_tokens: int = 0, cached_tokens: int = 0) -> None:
        """The request ended: `reason` is a finish reason or an error kind."""
        metrics = self._metrics
        now = monotonic()
        metrics.active.dec()
        metrics.requests.labels(metrics.model, reason).inc()
        metrics.e2e.observe(now - self._start)
        metrics.prompt_tokens.inc(prompt_tokens)
        metrics.cached_tokens.inc(cached_tokens)
        if prompt_tokens:  # a request refused before it was tokenized has no lengths
            metrics.prompt_length.observe(prompt_tokens)
            metrics.generation_length.observe(self._generated)
        per_choice = self._generated / max(1, len(self._last))
        if self._first is not None and per_choice > 1:
            metrics.tpot.observe((max(self._last.values()) - self._first) / (per_choice - 1))


class ModelMetrics:
    """The metrics of one model: the server's, with its name as label."""

    def __init__(self, server: ServerMetrics, model: str) -> None:
        self.model = model
        self.requests = server.requests
        self.active = server.active.labels(model)
        self.ttft = server.ttft.labels(model)
        self.itl = server.itl.labels(model)
        self.tpot = server.tpot.labels(model)
        self.e2e = server.e2e.labels(model)
        self.prompt_tokens = server.prompt_tokens.labels(model)
        self.cached_tokens = server.cached_tokens.labels(model)
        self.generation_tokens = server.generation_tokens.labels(model)
        self.malformed_tool_calls = server.malformed_tool_calls.labels(model)
        self.prompt_length = server.prompt_length.labels(model)
        self.generation_length = server.generation_length.labels(model)
        self._server = server
        self._step_time = server.step_time.labels(model)
        self._batch_size = server.batch_size.labels(model)
        self._batch_tokens = server.batch_tokens.labels(model)
        self._replayed = server.requests_replayed.labels(model)
        self._recovery_time = server.recovery_time.labels(model)

    def start(self) -> RequestObserver:
        """A request begins."""
        self.active.inc()
        return RequestObserver(self)

    def on_recovery(self, cause: str, seconds: float, replayed: int) -> None:
        """An engine that ended (cause ``crash`` or ``stall``) has been replaced."""
        self._server.engine_restarts.labels(self.model, cause).inc()
        self._replayed.inc(replayed)
        self._recovery_time.observe(seconds)

    def on_load(self, seconds: float) -> None:
        """The model has been loaded."""
        self._server.model_loads.labels(self.model).observe(seconds)

    def update_engine(self, stats: EngineStats) -> None:
        """Take the engine's latest snapshot (it comes with every step's outputs)."""
        # Not equal rather than greater: a new engine counts from zero again.
        if stats.steps != self._server.engine_stats(self.model).steps:
            self._step_time.observe(stats.last_step_seconds)
            self._batch_size.observe(stats.last_step_rows)
            self._batch_tokens.observe(stats.last_step_tokens)
        self._server.set_engine_stats(self.model, stats)

    def unloaded(self) -> None:
        """The engine has been closed: its gauges go."""
        self._server.set_engine_stats(self.model, None)


class ServerMetrics:
    """All metrics of one server, in a registry of their own.

    `render` takes milliseconds when there is much to print: call it in a thread.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engine = _EngineCollector()
        self.registry.register(self._engine)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(
                f"tidemill_{name}", text, _MODEL, buckets=buckets, registry=self.registry
            )

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"tidemill_{name}", text, (*_MODEL, *labels), registry=self.registry)

        self.active = Gauge(
            "tidemill_requests_active", "Requests being answered", _MODEL, registry=self.registry
        )
        self.requests = counter("requests", "Requests ended, by finish reason", ("reason",))
        self.ttft = histogram("ttft_seconds", "Time to first token", _SECONDS)
        self.itl = histogram("itl_seconds", "Time between tokens of one stream", _SECONDS)
        self.tpot = histogram(
            "tpot_seconds", "Mean time per output token after the first", _SECONDS
        )
        self.e2e = histogram("e2e_seconds", "Time from request to its end", _SECONDS)
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of ended requests")
        self.cached_tokens = counter(
            "prompt_tokens_cached", "Prompt tokens of ended requests found in the prefix cache"
        )
        self.generation_tokens = counter("generation_tokens", "Tokens sent to clients")
        self.malformed_tool_calls = counter(
            "malformed_tool_calls", "Outputs that began like a tool call and were none"
        )
        self.prompt_length = histogram("prompt_length_tokens", "Prompt length", _TOKENS)
        self.generation_length = histogram("generation_length_tokens", "Output length", _TOKENS)
        self.step_time = histogram("step_time_seconds", "Wall time of a step", _SECONDS)
        self.batch_size = histogram("batch_size_rows", "Rows of a step", _TOKENS)
        self.batch_tokens = histogram("batch_size_tokens", "Tokens of a step", _TOKENS)
        self.engine_restarts = counter(
            "engine_restarts", "Engines replaced: after a crash, or after a stall", ("cause",)
        )
        self.requests_replayed = counter(
            "requests_replayed", "Requests that went on on another engine"
        )
        self.recovery_time = histogram(
            "engine_recovery_seconds", "From an engine's end to the replay of its work", _SECONDS
        )
        self.model_loads = histogram("model_load_seconds", "Time to load a model", _SECONDS)
        self.slow_readers = Counter(
            "tidemill_slow_readers",
            "Connections cut because the client did not read its answer",
            registry=self.registry,
        )
        self.responses = Counter(
            "tidemill_http_responses",
            "HTTP responses, by status",
            ("status",),
            registry=self.registry,
        )
        self._models: dict[str, ModelMetrics] = {}

    def of(self, model: str) -> ModelMetrics:
        """The metrics of one model. Only names of models that are served: they are kept."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = ModelMetrics(self, model)
        return found

    def refused(self, code: str) -> None:
        """A request was answered with an error before a model had it."""
        self.requests.labels("", code).inc()

    def on_response(self, status: int) -> None:
        """An HTTP response was begun with this status."""
        self.responses.labels(str(status)).inc()

    def engine_stats(self, model: str) -> EngineStats:
        """The latest snapshot of a model's engine."""
        return self._engine.stats.get(model) or _NO_STATS

    def set_engine_stats(self, model: str, stats: EngineStats | None) -> None:
        """Set or remove it."""
        if stats is None:
            self._engine.stats.pop(model, None)
        else:
            self._engine.stats[model] = stats

    def render(self) -> bytes:
        """The exposition text of every metric (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)
