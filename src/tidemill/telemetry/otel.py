"""OpenTelemetry: spans and metrics of requests, over OTLP (extra `otel`).

A request costs its server a few random bytes when it comes and an entry of a queue when it has
ended; a thread makes spans of it a second later, and the SDK's threads send them. The engine does
nothing for it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping

from opentelemetry import trace as api
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    TraceIdRatioBased,
)

from tidemill.base.clock import monotonic, wall
from tidemill.base.log import get_logger, summary
from tidemill.base.trace_context import TraceContext
from tidemill.contract.wire import EngineStats
from tidemill.telemetry.otel_options import GRPC, OtelOptions, Target
from tidemill.telemetry.recent import Story
from tidemill.telemetry.record import Outcome
from tidemill.telemetry.spans import Attributes, Span, model_attributes, spans_of

log = get_logger(__name__)

SCOPE = "tidemill"

WAIT_SECONDS = 1.0
"""After a request's end: what an engine tells of one that its client left comes within it."""

CLOSE_SECONDS = 3.0

COMPLAINT_SECONDS = 60.0

MOST_WAITING = 8192
"""Requests and steps of which no spans are made yet; beyond, the oldest have none."""

_DURATIONS = tuple(0.01 * 2**i for i in range(14))
_FIRST_TOKENS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class _Ids(IdGenerator):
    """Random ids; of a request's first span the ones that were given away when it came."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        found, self.trace_id = self.trace_id, 0
        return found or secrets.randbits(128) or 1

    def generate_span_id(self) -> int:
        found, self.span_id = self.span_id, 0
        return found or secrets.randbits(64) or 1


class _Complaints(logging.Handler):
    """What the SDK complains of, as lines of this server's log, one a minute: a collector that is
    gone would fill it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        now = monotonic()
        if now >= self._next:
            self._next = now + COMPLAINT_SECONDS
            log.warning("OpenTelemetry: %s", record.getMessage()[:500])


class Exporter:
    """Exports what requests and steps were.

    Args:
        options: what and where to.
        version: of this software.
        scheme: of the server's URLs.
    """

    def __init__(self, options: OtelOptions, version: str, scheme: str = "http") -> None:
        self._options, self._scheme = options, scheme
        self._sampler = _sampler(options)
        self._steps = TraceIdRatioBased(options.ratio)
        self._ids = _Ids()
        sdk = logging.getLogger("opentelemetry")
        sdk.handlers[:] = [_Complaints()]
        sdk.propagate = False
        resource = _resource(version)
        # What is not sampled never gets here.
        self._provider = TracerProvider(
            ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids
        )
        if options.traces is not None:
            self._provider.add_span_processor(BatchSpanProcessor(_spans_to(options.traces)))
        self._tracer = self._provider.get_tracer(SCOPE, version)
        self._meters: MeterProvider | None = None
        self._metrics: _Metrics | None = None
        if options.metrics is not None:
            reader = PeriodicExportingMetricReader(_metrics_to(options.metrics))
            self._meters = MeterProvider([reader], resource, shutdown_on_exit=False)
            self._metrics = _Metrics(self._meters, version)
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque(maxlen=MOST_WAITING)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel", daemon=True)
        self._thread.start()

    def begin(self, incoming: TraceContext | None) -> TraceContext:
        """A request has come: the context of its server's span.

        Args:
            incoming: of its client.
        """
        parent = incoming if self._options.incoming else None
        trace_id = secrets.randbits(128) or 1 if parent is None else int(parent.trace_id, 16)
        sampled = False
        if self._options.traces is not None:
            above = None if parent is None else api.set_span_in_context(_remote(parent))
            decision = self._sampler.should_sample(above, trace_id, "", api.SpanKind.SERVER)
            sampled = decision.decision is Decision.RECORD_AND_SAMPLE
        return TraceContext(
            f"{trace_id:032x}",
            f"{secrets.randbits(64) or 1:016x}",
            int(sampled),
            *(("", "", "") if parent is None else (parent.state, parent.baggage, parent.span_id)),
        )

    def ended(self, story: Story) -> None:
        """A request has ended; one of `Recent.on_end`."""
        self._waiting.append((monotonic(), lambda: self._export(story)))

    def step(self, model: str, stats: EngineStats) -> None:
        """An engine has told of a step, which has just ended."""
        now = monotonic()
        self._waiting.append((now, lambda: self._export_step(model, stats, now)))

    @property
    def steps(self) -> bool:
        """Steps are wanted."""
        return self._options.steps and self._options.traces is not None

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Export what is left, as far as the collector takes it in time.

        Args:
            seconds: that the collector has; a server's end does not wait for one that is gone.
        """
        ending = threading.Thread(target=self._close, name="otel-close", daemon=True)
        ending.start()
        ending.join(seconds)
        if ending.is_alive():
            log.warning("the collector of OpenTelemetry did not take the last spans in time")

    def _close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._provider.shutdown()
        if self._meters is not None:
            self._meters.shutdown()

    def _run(self) -> None:
        while not self._ended.wait(WAIT_SECONDS):
            self._work(monotonic() - WAIT_SECONDS)
        self._work(float("inf"))

    def _work(self, until: float) -> None:
        while self._waiting and self._waiting[0][0] <= until:
            _, export = self._waiting.popleft()
            try:
                export()
            except Exception as error:
                log.error("a request has no spans: %s", summary(error))

    def _export(self, story: Story) -> None:
        if self._metrics is not None and story.record.model:
            self._metrics.add(story)
        context = story.context
        if context is None or not context.sampled:
            return
        offset = wall() - monotonic()
        spans = spans_of(story, self._scheme)
        made: list[api.Span] = []
        for span in spans:
            above = made[span.parent] if made else self._parent(context)
            made.append(self._begin(span, above, offset))
        for span, begun in zip(spans, made, strict=True):
            begun.end(_nanoseconds(span.end, offset))

    def _parent(self, context: TraceContext) -> api.Span | None:
        """The client's span; the next span gets the ids that its children were told."""
        self._ids.span_id = int(context.span_id, 16)
        if not context.parent_id:
            self._ids.trace_id = int(context.trace_id, 16)
            return None
        return _remote(context._replace(span_id=context.parent_id))

    def _begin(self, span: Span, above: api.Span | None, offset: float) -> api.Span:
        made = self._tracer.start_span(
            span.name,
            None if above is None else api.set_span_in_context(above),
            api.SpanKind.SERVER if span.server else api.SpanKind.INTERNAL,
            span.attributes,
            start_time=_nanoseconds(span.start, offset),
        )
        for event in span.events:
            made.add_event(event.name, event.attributes, _nanoseconds(event.at, offset))
        if span.error:
            made.set_status(api.Status(api.StatusCode.ERROR, span.error))
        return made

    def _export_step(self, model: str, stats: EngineStats, end: float) -> None:
        trace_id = secrets.randbits(128) or 1
        if self._steps.should_sample(None, trace_id, "").decision is Decision.DROP:
            return
        self._ids.trace_id = trace_id
        offset, seconds = wall() - monotonic(), stats.last_step_seconds
        attributes: Attributes = {
            "gen_ai.request.model": model,
            "tidemill.step": stats.steps,
            "tidemill.step.rows": stats.last_step_rows,
            "tidemill.step.tokens": stats.last_step_tokens,
            "tidemill.step.predicted_seconds": stats.last_predicted_seconds,
        }
        begin = _nanoseconds(end - seconds, offset)
        made = self._tracer.start_span("engine.step", attributes=attributes, start_time=begin)
        made.end(_nanoseconds(end, offset))


class _Metrics:
    """The conventions' metrics of servers of generative AI."""

    def __init__(self, provider: MeterProvider, version: str) -> None:
        meter = provider.get_meter(SCOPE, version)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(
                f"gen_ai.server.{name}", "s", text, explicit_bucket_boundaries_advisory=buckets
            )

        self._duration = histogram(
            "request.duration", "Time to the last byte of the answer", _DURATIONS
        )
        self._first = histogram("time_to_first_token", "Time to the first token", _FIRST_TOKENS)
        self._each = histogram(
            "time_per_output_token", "Mean time per token after the first", _PER_TOKEN
        )

    def add(self, story: Story) -> None:
        """Count a request that has ended."""
        record = story.record
        attributes = model_attributes(record)
        self._duration.record(record.duration / 1e6, attributes)
        if record.outcome != Outcome.FINISHED or not record.generated:
            return
        phases = story.phases(story.milestones.ended)
        prefill = [phase.end for phase in phases if phase.name == "prefill"]
        if prefill:
            self._first.record(prefill[0], attributes)
        each = record.generated / max(1, record.choices) - 1
        if record.decode is not None and each > 0:
            self._each.record(record.decode / 1e6 / each, attributes)


def _sampler(options: OtelOptions) -> Sampler:
    name = options.sampler.removeprefix("parentbased_")
    ratio = TraceIdRatioBased(options.ratio)
    samplers: Mapping[str, Sampler] = {"always_on": ALWAYS_ON, "always_off": ALWAYS_OFF}
    root = samplers.get(name, ratio)
    return ParentBased(root) if options.sampler.startswith("parentbased_") else root


def _resource(version: str) -> Resource:
    found = Resource.create({SERVICE_VERSION: version})
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "tidemill"}))
    return found


def _spans_to(target: Target) -> SpanExporter:
    headers, endpoint = dict(target.headers), target.endpoint or None
    if target.protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        return GrpcExporter(endpoint, headers=headers)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint, headers=headers)


def _metrics_to(target: Target) -> MetricExporter:
    headers, endpoint = dict(target.headers), target.endpoint or None
    if target.protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
            OTLPMetricExporter as GrpcExporter,
        )

        return GrpcExporter(endpoint, headers=headers)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(endpoint, headers=headers)


def _remote(context: TraceContext) -> api.NonRecordingSpan:
    return api.NonRecordingSpan(
        api.SpanContext(
            int(context.trace_id, 16),
            int(context.span_id, 16),
            is_remote=True,
            trace_flags=api.TraceFlags(context.flags),
            trace_state=api.TraceState.from_header([context.state]),
        )
    )


def _nanoseconds(time: float, offset: float) -> int:
    return int((time + offset) * 1e9)
