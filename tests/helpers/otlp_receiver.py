"""A collector for tests: it receives OTLP over HTTP and gRPC, and keeps what came."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc


@dataclass(frozen=True)
class Received:
    """A span; times are seconds since the epoch, ids hexadecimal."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start: float
    end: float
    attributes: dict[str, Any]
    events: list[str]
    error: str
    state: str
    resource: dict[str, Any]


@dataclass
class Collector:
    """What came, and where to send it.

    Attributes:
        http, grpc: endpoints.
        spans, metrics: in the order of their arrival; metrics by name.
        headers: of the exports over HTTP, and the metadata of those over gRPC.
    """

    http: str = ""
    grpc: str = ""
    spans: list[Received] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)

    def wait(self, enough: Callable[[list[Received]], Any], seconds: float = 30) -> list[Received]:
        """The spans, as soon as there are enough."""
        deadline = time.monotonic() + seconds
        while not enough(self.spans):
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.02)
        return list(self.spans)

    def take_spans(self, request: trace_pb.ExportTraceServiceRequest) -> None:
        """An export of spans."""
        for of in request.resource_spans:
            resource = _attributes(of.resource.attributes)
            for scope in of.scope_spans:
                self.spans += [_received(span, resource) for span in scope.spans]

    def take_metrics(self, request: metrics_pb.ExportMetricsServiceRequest) -> None:
        """An export of metrics."""
        for of in request.resource_metrics:
            for scope in of.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}


def _received(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        _attributes(span.attributes),
        [event.name for event in span.events],
        span.status.message if span.status.code == 2 else "",
        span.trace_state,
        resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(one) for one in found.values] if kind == "array_value" else found


class _Spans(trace_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> Any:
        self._collector.headers.append(dict(context.invocation_metadata()))
        self._collector.take_spans(request)
        return trace_pb.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> Any:
        self._collector.take_metrics(request)
        return metrics_pb.ExportMetricsServiceResponse()


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    kinds = {
        "/v1/traces": (trace_pb.ExportTraceServiceRequest, collector.take_spans),
        "/v1/metrics": (metrics_pb.ExportMetricsServiceRequest, collector.take_metrics),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            kind, take = kinds[self.path]
            collector.headers.append({k.lower(): v for k, v in self.headers.items()})
            take(kind.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that runs."""
    collector = Collector()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(collector))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_grpc.add_TraceServiceServicer_to_server(_Spans(collector), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(collector), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    collector.http = f"http://127.0.0.1:{http.server_address[1]}"
    collector.grpc = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        http.shutdown()
        http.server_close()
        server.stop(None)
