"""The server's metrics in Prometheus form: what requests saw, and what the engine counted.

Request-side figures (TTFT, ITL, TPOT, end to end) are observed in the API process, where the client
sees them. Engine-side figures arrive as `EngineStats` snapshots; their counters are absolute, so
they are exported as they are instead of being counted again. Their names and meanings are in
`families`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from tidemill.base import trace_context
from tidemill.base.clock import monotonic
from tidemill.contract.wire import EngineStats
from tidemill.metrics.aliases import ALIASES, aliased
from tidemill.metrics.families import ENGINE_FAMILIES, counter, gauge, histogram, samples
from tidemill.metrics.speculation import speculation_metrics
from tidemill.metrics.tiers import tier_metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NO_STATS = EngineStats()


class _EngineCollector:
    """Exports the latest `EngineStats` of every model whenever the registry is scraped."""

    def __init__(self) -> None:
        self.stats: dict[str, EngineStats] = {}

    def collect(self) -> Iterator[Metric]:
        for family in ENGINE_FAMILIES:
            exported = samples(family.name)
            for model, stats in self.stats.items():
                exported.add_metric((model,), getattr(stats, family.field))
            yield exported
        usage = samples("kv_usage_ratio")
        for model, stats in self.stats.items():
            total = stats.blocks_total
            usage.add_metric((model,), stats.blocks_used / total if total else 0.0)
        yield usage
        yield from speculation_metrics(self.stats)
        yield from tier_metrics(self.stats)


def exemplar(context: trace_context.TraceContext | None) -> dict[str, str] | None:
    """What observations of a request say of its trace; None where that is not recorded."""
    if context is None or not context.sampled:
        return None
    return {"trace_id": context.trace_id, "span_id": context.span_id}


class RequestObserver:
    """Times one request for the histograms; made by `ModelMetrics.start`.

    `tokens` is called with each batch of tokens of one choice, `finish` exactly once. Of a request
    whose trace is sampled, its latencies have the trace's id as exemplar.
    """

    __slots__ = ("_exemplar", "_first", "_generated", "_last", "_metrics", "_start")

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._start = monotonic()
        self._first: float | None = None
        self._last: dict[int, float] = {}
        self._generated = 0
        self._exemplar = exemplar(trace_context.current.get())

    def tokens(self, choice: int, count: int) -> None:
        """`count` tokens of a choice reached the client now."""
        if count <= 0:
            return
        now = monotonic()
        metrics = self._metrics
        if self._first is None:
            self._first = now
            metrics.ttft.observe(now - self._start, self._exemplar)
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
        metrics.e2e.observe(now - self._start, self._exemplar)
        metrics.prompt_tokens.inc(prompt_tokens)
        metrics.cached_tokens.inc(cached_tokens)
        if prompt_tokens:  # a request refused before it was tokenized has no lengths
            metrics.prompt_length.observe(prompt_tokens)
            metrics.generation_length.observe(self._generated)
        per_choice = self._generated / max(1, len(self._last))
        if self._first is not None and per_choice > 1:
            seconds = max(self._last.values()) - self._first
            metrics.tpot.observe(seconds / (per_choice - 1), self._exemplar)


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

    Attributes:
        registry: of all of them.
        aliases: a name of `ALIASES`, whose metrics are exported as well; empty: none.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.aliases = ""
        self._engine = _EngineCollector()
        self.registry.register(self._engine)

        registry = self.registry
        self.active = gauge("requests_active", registry)
        self.requests = counter("requests", registry)
        self.ttft = histogram("ttft_seconds", registry)
        self.itl = histogram("itl_seconds", registry)
        self.tpot = histogram("tpot_seconds", registry)
        self.e2e = histogram("e2e_seconds", registry)
        self.prompt_tokens = counter("prompt_tokens", registry)
        self.cached_tokens = counter("prompt_tokens_cached", registry)
        self.generation_tokens = counter("generation_tokens", registry)
        self.malformed_tool_calls = counter("malformed_tool_calls", registry)
        self.prompt_length = histogram("prompt_length_tokens", registry)
        self.generation_length = histogram("generation_length_tokens", registry)
        self.step_time = histogram("step_time_seconds", registry)
        self.batch_size = histogram("batch_size_rows", registry)
        self.batch_tokens = histogram("batch_size_tokens", registry)
        self.engine_restarts = counter("engine_restarts", registry)
        self.requests_replayed = counter("requests_replayed", registry)
        self.recovery_time = histogram("engine_recovery_seconds", registry)
        self.model_loads = histogram("model_load_seconds", registry)
        self.slow_readers = counter("slow_readers", registry)
        self.responses = counter("http_responses", registry)
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

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition of every metric and its content type.

        Args:
            accept: of the request: OpenMetrics, which has exemplars, where it wants that.
        """
        if "application/openmetrics-text" in accept:
            from prometheus_client.openmetrics.exposition import ALLOWUTF8, CONTENT_TYPE_LATEST
            from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

            # The library's other escapings turn the colon of an alias into an underscore.
            return openmetrics(self, escaping=ALLOWUTF8), CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
        return generate_latest(self), CONTENT_TYPE

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's collectors: all metrics, and their aliases."""
        found = list(self.registry.collect())
        yield from found
        if self.aliases:
            yield from aliased(found, ALIASES[self.aliases])
