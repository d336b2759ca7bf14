"""The outermost middleware: request ids, the access log, HEAD, and response counters."""

from __future__ import annotations

import logging
import re
import string
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.base.clock import monotonic
from tidemill.base.heap import HeapTrimmer
from tidemill.base.ids import new_id
from tidemill.base.log import get_logger
from tidemill.base.trace_context import TraceContext, current, trace_context
from tidemill.metrics.registry import ServerMetrics
from tidemill.server.access.auth import PROBES, by_address
from tidemill.server.errors import Problem
from tidemill.server.transport.turns import next_turn

if TYPE_CHECKING:
    from tidemill.server.recording import Recording
    from tidemill.telemetry.phases import Phase

log = get_logger(__name__)

MAX_REQUEST_ID = 128
_ID_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-_.:/+=")

CLIENT_CLOSED_REQUEST = 499
"""Status in the log of a request whose client disconnected before the response began."""

# A name, followed by array indices.
_SEGMENT = re.compile(r"([A-Za-z_]\w*)(?:\[\d+\])*", re.ASCII)

# Polled every few seconds; successful requests are logged at debug level.
_QUIET = frozenset({"/healthz", "/readyz", "/health", "/ping", "/metrics"})


class AccessLogMiddleware:
    """ASGI middleware around everything else.

    - Gives every request an id, taken from X-Request-Id where that is valid, and returns it.
    - Says which model answers, in X-Tidemill-Model; of a name with versions: which version.
    - Continues the trace of its client (W3C trace context), or begins one.
    - Says what is left of the client's limits, in the headers of the request's dialect.
    - Says where the time went up to the first byte, in Server-Timing.
    - Answers HEAD as GET without the body; uvicorn drops it.
    - Returns freed memory to the system after requests.
    - Logs each request with its route's pattern, and a rejected one with the error's code and
      field. Client content (paths, queries, headers, bodies) is never logged. Field names are
      logged only if the API declares them.
    - Swallows the exception that the framework re-raises after a 500 response. It is logged
      already, and uvicorn would print a second traceback.

    Args:
        app: the wrapped application; it stores the `Problem` of an error response in
            `state.problem`.
        metrics: counts responses.
        pattern_of: maps a path to its route's pattern, or None; for requests that were
            answered before routing.
        field_names: all field names that the API declares.
        recording: makes a record of each request that asks a model for something; None: nobody
            reads them.
        trace: begins the server's span of a request, given the client's; None: it has none, and
            what is done for a request belongs to its client's.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: ServerMetrics,
        pattern_of: Callable[[str], str | None] = lambda path: None,
        field_names: Callable[[], Collection[str]] = frozenset,
        recording: Recording | None = None,
        trace: Callable[[TraceContext | None], TraceContext] | None = None,
    ) -> None:
        self.app = app
        self._metrics = metrics
        self._pattern_of = pattern_of
        self._field_names = field_names
        self._heap_trimmer = HeapTrimmer()
        self._recording = recording
        self._trace = trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _valid_id(headers.get("x-request-id")) or new_id("req")
        if scope["path"] not in PROBES:
            await next_turn()
        method, began, status = scope["method"], monotonic(), 0
        if method == "HEAD":
            scope = {**scope, "method": "GET"}
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        context = trace_context(headers.getlist)
        state["trace_context"] = context = context if self._trace is None else self._trace(context)
        current.set(context)
        record = None if self._recording is None else self._recording.begin(state, _arrived(scope))

        async def with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                model = scope["state"].get("model")
                if model is not None:
                    headers["x-tidemill-model"] = model
                headers.update(scope["state"].get("answer_headers", {}))
                if record is not None and (phases := record.phases()):
                    headers["server-timing"] = server_timing(phases)
                if further := scope["state"].get("id_header"):
                    headers[further] = request_id
                quota = scope["state"].get("quota")
                standing = None if quota is None else quota.standing()
                if standing is not None:
                    for name, value in scope["state"]["limit_headers"](standing):
                        headers.append(name, value)
                self._metrics.on_response(status)
            elif record is not None and not message.get("more_body", False):
                # Before the last byte: what a client has whole has been recorded.
                record.close(status, method, self._route(scope))
            await send(message)

        try:
            await self.app(scope, receive, with_id)
        except Exception:
            # The framework's handler has answered and logged, unless the answer itself failed.
            if not status:
                raise
        finally:
            # Of a connection that has become another protocol's: what that left.
            ended = status or scope["state"].get("status") or CLIENT_CLOSED_REQUEST
            if record is not None:
                record.close(ended, method, self._route(scope))
            self._heap_trimmer.done()
            self._log(scope, method, ended, monotonic() - began)

    def _route(self, scope: Scope) -> str | None:
        return scope["state"].get("route") or self._pattern_of(scope["path"])

    def _log(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        state = scope["state"]
        path = self._route(scope) or "unknown route"
        level = logging.DEBUG if path in _QUIET and status < 400 else logging.INFO
        if not log.isEnabledFor(level):
            return
        principal, generation = state.get("principal"), state.get("generation")
        model: str | None = state.get("model")
        event: dict[str, Any] = {
            "event": "request",
            "request_id": state["request_id"],
            "method": method if method.isalpha() and len(method) < 12 else "?",
            "route": path,
            "status": status,
            "seconds": round(seconds, 6),
            "client": (principal or by_address((scope.get("client") or ("",))[0], None)).name,
        }
        more = ""
        if (context := state.get("trace_context")) is not None:
            event["trace_id"] = context.trace_id
        if model is not None:
            event["model"] = model
            more = f", {model}"
        if generation is not None:
            event["prompt_tokens"] = generation.prompt_tokens
            event["cached_tokens"] = generation.cached_tokens
            event["completion_tokens"] = generation.completion_tokens
            event["finished"] = generation.finished
            left = "" if generation.finished else ", not finished"
            more += f", {generation.prompt_tokens}+{generation.completion_tokens} tokens{left}"
        problem: Problem | None = state.get("problem")
        if problem is not None:
            event["error"] = problem.code
            more += f": {problem.code}"
            if problem.param is not None:
                event["param"] = declared_names(problem.param, self._field_names())
                more += f" [{event['param']}]"
        log.log(
            level,
            "%s %s %d in %.3f s%s (%s, %s)",
            *(event["method"], path, status, seconds, more, event["client"], event["request_id"]),
            extra={"event": event},
        )


def server_timing(phases: Sequence[Phase]) -> str:
    """Phases as a Server-Timing header has them, in milliseconds, and their sum."""
    total = sum(phase.seconds for phase in phases)
    parts = [f"{phase.name};dur={phase.seconds * 1e3:.3f}" for phase in phases]
    return ", ".join((*parts, f"total;dur={total * 1e3:.3f}"))


def declared_names(param: str, names: Collection[str]) -> str:
    """A field's path in which ``?`` replaces every name not in `names`, since it may be content.

    ``messages[0].content`` stays, ``tools[0].function.parameters.properties.ssn`` ends in ``?``.
    """
    parts = (_SEGMENT.fullmatch(part) for part in param[:256].split("."))
    return ".".join(m[0] if m is not None and m[1] in names else "?" for m in parts)


def _arrived(scope: Scope) -> float | None:
    """When the head of a request was read, of the monotonic clock; None where that is not known."""
    found: float | None = scope.get("extensions", {}).get("tidemill.arrived")
    return found


def _valid_id(request_id: str | None) -> str | None:
    if request_id and len(request_id) <= MAX_REQUEST_ID and _ID_CHARACTERS.issuperset(request_id):
        return request_id
    return None
